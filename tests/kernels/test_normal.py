"""Normal numbers from several threads."""

import math
import multiprocessing

import pytest
import torch

from bbh.kernels.normal import PART, standard_normal

LIKE = torch.zeros(1)
LARGE = 3 * PART + 17


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def drawn(shape, seed=0, like=LIKE):
    torch.manual_seed(seed)
    return standard_normal(shape, like)


def test_seed_decides_and_the_number_of_threads_does_not(threads):
    numbers = drawn((LARGE,))
    threads(1)
    assert torch.equal(drawn((LARGE,)), numbers)
    assert not torch.equal(drawn((LARGE,), seed=1), numbers)


def test_later_numbers_of_the_same_seed_are_others():
    torch.manual_seed(0)
    first, second = (standard_normal((LARGE,), LIKE) for _ in range(2))
    assert not torch.isin(first[:100], second).any()


def test_few_are_torchs_own():
    torch.manual_seed(0)
    expected = torch.randn(5, 7)
    assert torch.equal(drawn((5, 7)), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_moments_quantiles_and_independence_of_parts(dtype):
    numbers = drawn((4, PART), like=LIKE.to(dtype))
    assert numbers.dtype == dtype
    flat = numbers.flatten().double()
    error = 5 / math.sqrt(len(flat))
    assert flat.mean().abs() < error
    assert (flat.var() - 1).abs() < math.sqrt(2) * error
    quantiles = torch.tensor([0.01, 0.1, 0.5, 0.9, 0.99])
    bounds = math.sqrt(2) * torch.special.erfinv(2 * quantiles - 1)
    below = (flat.unsqueeze(1) < bounds).double().mean(0)
    torch.testing.assert_close(below.float(), quantiles, rtol=0, atol=error)
    # Each row is the work of one seed.
    correlation = torch.corrcoef(numbers.double()) - torch.eye(4)
    assert correlation.abs().max() < 5 / math.sqrt(PART)


def test_in_inference_mode():
    numbers = drawn((LARGE,))
    with torch.inference_mode():
        assert torch.equal(drawn((LARGE,)), numbers)


@pytest.mark.skipif(
    "fork" not in multiprocessing.get_all_start_methods(), reason="this system does not fork"
)
def test_after_a_fork():
    drawn((LARGE,))  # threads are running
    process = multiprocessing.get_context("fork").Process(target=drawn, args=((LARGE,),))
    process.start()
    process.join(30)
    alive = process.is_alive()
    process.kill()
    assert not alive
    assert process.exitcode == 0
