"""The rank-S Adam: Triton's interpreter and the plain twin against torch's Adam in double."""

import copy
from functools import partial

import pytest
import torch
from torch.optim.lr_scheduler import ConstantLR

import bbh
from bbh.generators.factored.adam import FactoredAdam, make_adam
from bbh.generators.factored.outer_adam import AdamSettings, outer_adam_plain_, rounded_at_random
from generators.test_factored_optimizers import posterior_and_data
from interpreter import run_interpreted
from scenarios import mlp

SHAPES = [(1, 1), (3, 5), (17, 64), (130, 33), (64, 512), (9, 700), (2, 1030)]
SETTINGS = [
    AdamSettings(0.9, 0.999, 1e-8, 0.0, False),
    AdamSettings(0.9, 0.999, 1e-5, 0.1, False),
    AdamSettings(0.0, 0.9, 1e-5, 0.1, True),
]
STEPS = 3
# The interpreter is slow: every two of shape, rank and settings meet, not every three.
PAIRS = [
    (shape, rank, SETTINGS[(row + column) % len(SETTINGS)])
    for row, shape in enumerate(SHAPES)
    for column, rank in enumerate((1, 2, 3, 5, 8, 16))
]


def compare(update, shape, rank, settings):
    """Largest relative error of weight and moments after a few steps, against double precision."""
    torch.manual_seed(rank)
    start = torch.randn(shape)
    reference = start.double().requires_grad_()
    kind = torch.optim.AdamW if settings.decoupled else torch.optim.Adam
    betas = (settings.beta1, settings.beta2)
    optimizer = kind(
        [reference], 0.01, betas=betas, eps=settings.eps, weight_decay=settings.weight_decay
    )
    weight, exp_avg, exp_avg_sq = start.clone(), torch.zeros(shape), torch.zeros(shape)
    step = torch.zeros(())
    for number in range(STEPS + 1):
        left, right = torch.randn(rank, shape[0]), torch.randn(rank, shape[1])
        skip = torch.tensor(1.0 if number == 1 else 0.0)
        step += 1
        update(weight, exp_avg, exp_avg_sq, left, right, torch.tensor(0.01), step, skip, settings)
        step -= skip
        if not skip:
            reference.grad = left.double().T @ right.double()
            optimizer.step()
    state = optimizer.state[reference]
    return max(
        ((mine.double() - other).norm() / other.norm()).item()
        for mine, other in (
            (weight, reference.detach()),
            (exp_avg, state["exp_avg"]),
            (exp_avg_sq, state["exp_avg_sq"]),
        )
    )


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("rank", [1, 5, 16])
@pytest.mark.parametrize("shape", SHAPES)
def test_plain_twin(shape, rank, settings, monkeypatch):
    monkeypatch.setattr("bbh.generators.factored.gradients._BLOCK_BYTES", 40_000)  # several blocks
    # Sums of sixteen products in single precision: 16 · 6e-8, over three steps.
    assert compare(outer_adam_plain_, shape, rank, settings) < 3e-6


@pytest.mark.slow
def test_triton_kernel_through_its_interpreter():
    pytest.importorskip("triton", reason="Triton is not installed")
    error = run_interpreted(
        "from generators.test_outer_adam import *\n"
        "from bbh.generators.factored.outer_adam_triton import launch\n"
        "print(max(compare(launch, *case) for case in PAIRS))"
    )
    assert float(error) < 3e-6


def rounding(update, count=20_000):
    """Of moments in bfloat16 after one step: mean error in spacings, and the largest."""
    torch.manual_seed(0)
    weight, left, right = torch.zeros(count, 1), torch.full((1, count), 3.0), torch.ones(1, 1)
    moments = [torch.zeros(count, 1, dtype=torch.bfloat16) for _ in range(2)]
    settings = AdamSettings(0.9, 0.999, 1e-8, 0.0, False)
    update(weight, *moments, left, right, 0.01, torch.ones(()), None, settings)
    exact = torch.tensor([0.3, 0.009], dtype=torch.float64)
    # Eight bits of mantissa: between 2⁻² and 2⁻¹ they are 2⁻⁹ apart.
    spacing = torch.tensor([2.0**-9, 2.0**-14])
    errors = (torch.cat(moments, 1).double() - exact) / spacing
    return errors.mean(0).abs().max().item(), errors.abs().max().item()


def check_rounding(mean_error, largest_error):
    # Each error is uniform in a spacing at most, so the mean's standard deviation is below 0.004.
    assert mean_error < 0.016
    assert 0.5 < largest_error < 1


def test_half_the_moments_are_right_on_average():
    check_rounding(*rounding(outer_adam_plain_))


def test_what_is_no_number_stays_none():
    values = torch.tensor([torch.nan, torch.inf, 1.0])
    values[0] = torch.tensor([0x7FFFFFFF], dtype=torch.int32).view(torch.float32)[0]
    for _ in range(20):
        rounded = rounded_at_random(values)
        assert rounded.isnan().tolist() == [True, False, False]


def test_half_the_moments_in_the_kernel():
    pytest.importorskip("triton", reason="Triton is not installed")
    found = run_interpreted(
        "from generators.test_outer_adam import *\n"
        "from bbh.generators.factored.outer_adam_triton import launch\n"
        "print(*rounding(launch))"
    )
    check_rounding(*map(float, found.split()))


def test_small_steps_of_half_the_moments_add_up():
    weight, left, right = torch.zeros(100, 1), torch.ones(1, 100), torch.ones(1, 1)
    exp_avg, exp_avg_sq = (torch.zeros(100, 1, dtype=torch.bfloat16) for _ in range(2))
    settings, step = AdamSettings(0.9, 0.999, 1e-8, 0.0, False), torch.zeros(())
    for _ in range(1000):
        step += 1
        outer_adam_plain_(weight, exp_avg, exp_avg_sq, left, right, 0.0, step, None, settings)
    # Rounding to nearest would stop near a quarter, where a thousandth is half a spacing.
    assert exp_avg_sq.float().mean().item() == pytest.approx(1 - 0.999**1000, rel=0.02)
    assert exp_avg.float().mean().item() == pytest.approx(1, rel=0.01)


def test_half_the_moments_stay_so_after_loading():
    posterior, data = posterior_and_data()
    optimizer = make_adam(posterior.weights, posterior.parameters(), moments=torch.bfloat16)
    bbh.free_energy(posterior, data[0], num_data=24).total.backward()
    optimizer.step()
    large = [p for p in posterior.parameters() if p.numel() >= 2**16]
    assert all(optimizer.state[p]["exp_avg"].dtype == torch.bfloat16 for p in large)
    before = copy.deepcopy(optimizer.state[large[0]])
    optimizer.load_state_dict(optimizer.state_dict())
    optimizer.found_inf = torch.ones(())
    optimizer.step()
    torch.testing.assert_close(optimizer.state[large[0]], before, rtol=0, atol=0)


@pytest.mark.parametrize("clip", [None, 0.1])
def test_the_same_training_as_with_torchs_adam(clip, tmp_path):
    results = []
    for factored in (True, False):
        posterior, data = posterior_and_data()
        make = None if factored else (lambda p: torch.optim.Adam(p, lr=1e-3, fused=True))
        history = bbh.fit(
            posterior,
            data,
            epochs=3,
            num_data=24,
            learning_rate=1e-3,
            optimizer=make,
            scheduler=partial(ConstantLR, factor=1.0),
            gradient_clip=clip,
            progress=False,
        )
        results.append((history[-1].total, history[-1].gradient_norm, posterior.state_dict()))
    (total, norm, mine), (other_total, other_norm, others) = results
    assert total == pytest.approx(other_total, rel=1e-4)
    assert norm == pytest.approx(other_norm, rel=1e-3)
    for name, value in mine.items():
        torch.testing.assert_close(value, others[name], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("decoupled", [False, True])
def test_one_step_with_weight_decay(decoupled):
    posterior, data = posterior_and_data()
    other = copy.deepcopy(posterior)
    settings = {"lr": 0.01, "weight_decay": 0.3, "decoupled_weight_decay": decoupled}
    optimizers = (
        make_adam(posterior.weights, posterior.parameters(), **settings),
        torch.optim.Adam(other.parameters(), fused=True, **settings),
    )
    for one, optimizer in zip((posterior, other), optimizers, strict=True):
        torch.manual_seed(3)
        bbh.free_energy(one, data[0], num_data=24).total.backward()
        optimizer.step()
    for mine, expected in zip(posterior.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(mine, expected, rtol=1e-4, atol=1e-4)


def test_checkpoints_serve_either_optimizer(tmp_path):
    posterior, data = posterior_and_data()
    optimizer = make_adam(posterior.weights, posterior.parameters())
    bbh.free_energy(posterior, data[0], num_data=24).total.backward()
    optimizer.step()
    other = torch.optim.Adam(posterior.parameters(), fused=True)
    other.load_state_dict(optimizer.state_dict())
    assert len(other.state) == len(list(posterior.parameters()))
    back = make_adam(posterior.weights, posterior.parameters())
    back.load_state_dict(other.state_dict())
    assert all(state["step"] == 1 for state in back.state.values())


def test_moments_of_another_type_are_refused():
    with pytest.raises(ValueError, match=r"moments=torch\.float16: choose"):
        FactoredAdam([torch.nn.Parameter(torch.zeros(2))], [], moments=torch.float16)


def test_small_networks_have_nothing_to_factor():
    posterior = bbh.methods.bayes_by_hypernet(mlp(), bbh.likelihoods.Categorical())
    optimizer = make_adam(posterior.weights, posterior.parameters())
    bbh.free_energy(
        posterior, (torch.randn(6, 4), torch.arange(6) % 3), num_data=6
    ).total.backward()
    assert all(p.grad is not None for p in posterior.parameters())
    assert optimizer.defaults["fused"]
