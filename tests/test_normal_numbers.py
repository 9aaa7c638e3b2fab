"""Normal numbers from the compiled loop, against the cipher's published results and in double."""

import math

import pytest
import torch
from scipy import stats

from bbh import compiled, normal_numbers
from bbh.normal_numbers import FEWEST, standard_normal

pytestmark = pytest.mark.skipif(compiled.compiler() is None, reason="there is no C++ compiler")
WORD = 0xFFFFFFFF
LIKE = torch.empty(0)


@pytest.fixture
def compiling(monkeypatch):
    monkeypatch.delenv("TORCH_COMPILE_DISABLE")
    normal_numbers._loop.cache_clear()  # other tests find no loop
    yield monkeypatch
    normal_numbers._loop.cache_clear()


def philox(counter, key):
    a, b, c, d = counter
    for number in range(10):
        one = (key[0] + number * 0x9E3779B9) & WORD
        other = (key[1] + number * 0xBB67AE85) & WORD
        left, right = a * 0xD2511F53, c * 0xCD9E8D57
        a, c = (right >> 32) ^ b ^ one, (left >> 32) ^ d ^ other
        b, d = right & WORD, left & WORD
    return a, b, c, d


def transformed(a, b):
    radius = math.sqrt(-2 * math.log(((a >> 1) + 0.5) / 2**31))
    angle = 2 * math.pi * (b - 2**32 if b >= 2**31 else b) / 2**32
    return radius * math.cos(angle), radius * math.sin(angle)


def test_the_cipher_is_the_published_one():
    # Known answers of its authors' library, Random123.
    expected = 0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8
    assert philox((0, 0, 0, 0), (0, 0)) == expected
    expected = 0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD
    assert philox((WORD,) * 4, (WORD, WORD)) == expected


def test_every_number_follows_from_the_seed_and_its_place(compiling):
    torch.manual_seed(3)
    numbers = standard_normal(2, FEWEST + 5, LIKE).flatten()
    torch.manual_seed(3)
    seed = int(torch.randint(2**62, ()))
    key = seed & WORD, seed >> 32
    for block in (0, 1, 500, 1000):
        for lane in range(16):
            words = philox((16 * block + lane, 0, 0, 0), key)
            expected = (*transformed(*words[:2]), *transformed(*words[2:]))
            found = numbers[64 * block + lane : 64 * (block + 1) : 16]
            # The angle has 24 bits of the 32.
            assert found.tolist() == pytest.approx(expected, abs=2e-6)


def test_numbers_do_not_depend_on_the_number_of_threads(compiling):
    compiling.setattr(normal_numbers, "_BLOCKS_PER_PART", 100)
    found, before = [], torch.get_num_threads()
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            torch.manual_seed(0)
            found.append(standard_normal(3, FEWEST, LIKE))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(*found)


def test_the_distribution_is_normal(compiling):
    torch.manual_seed(0)
    numbers = standard_normal(8, 2**17, LIKE).double()
    assert stats.kstest(numbers.flatten().numpy(), "norm").pvalue > 1e-3
    # Four standard errors of the fourth moment of a million numbers, and of a correlation.
    assert numbers.pow(4).mean().item() == pytest.approx(3, abs=4 * math.sqrt(96 / 2**20))
    off = torch.corrcoef(numbers) - torch.eye(8)
    assert off.abs().max() < 4 / math.sqrt(2**17)
    assert not torch.equal(numbers, standard_normal(8, 2**17, LIKE).double())


@pytest.mark.parametrize(
    ("number", "like"), [(FEWEST - 1, LIKE), (FEWEST, LIKE.double())], ids=["few", "double"]
)
def test_other_numbers_are_torchs(number, like, compiling):
    torch.manual_seed(0)
    found = standard_normal(2, number, like)
    torch.manual_seed(0)
    assert torch.equal(found, torch.randn(2, number, dtype=like.dtype))


def test_without_a_compiler_numbers_are_torchs():
    normal_numbers._loop.cache_clear()
    torch.manual_seed(0)
    found = standard_normal(2, FEWEST, LIKE)
    torch.manual_seed(0)
    assert torch.equal(found, torch.randn(2, FEWEST))
    normal_numbers._loop.cache_clear()
