"""Flows against autograd: log-determinants, invertibility, and densities that integrate to one."""

import math

import pytest
import torch
from torch import Tensor, nn

from bbh.methods import FlowKind
from bbh.methods.flow_steps import FlowChain, MaskedRealNVP, Planar, draw_masks, flows_together
from bbh.methods.flows import MultiplierFlow, draw_multipliers, reverse_log_prob

KINDS = list(FlowKind)


def randomise(flow: nn.Module, scale: float) -> nn.Module:
    """Parameters far from their tame start."""
    for parameter in flow.parameters():
        nn.init.normal_(parameter, std=scale)
    return flow.double()


def jacobian(flow: FlowChain, point: Tensor, masks: Tensor) -> Tensor:
    def mapped(z: Tensor) -> Tensor:
        return flow(z.unsqueeze(0), masks)[0].squeeze(0)

    result = torch.autograd.functional.jacobian(mapped, point)
    assert isinstance(result, Tensor)
    return result


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dim", [1, 2, 7])
@pytest.mark.parametrize("steps", [0, 1, 3])
@pytest.mark.parametrize("scale", [0.05, 1.0])
def test_log_determinant_is_that_of_the_jacobian(
    kind: FlowKind, dim: int, steps: int, scale: float
):
    flow = FlowChain(kind, dim, steps, hidden=11)
    randomise(flow, scale)
    for _ in range(5):
        point = 2 * torch.randn(dim, dtype=torch.float64)
        (masks,) = draw_masks([flow], point.view(1, 1, dim))
        sign, log_det = torch.linalg.slogdet(jacobian(flow, point, masks))
        torch.testing.assert_close(flow(point.unsqueeze(0), masks)[1].squeeze(), log_det)
        assert sign == 1


def test_single_dimension_takes_planar_steps():
    steps = FlowChain(FlowKind.REAL_NVP, 1, 2, hidden=5).steps
    assert all(isinstance(step, Planar) for step in steps)


def test_real_nvp_keeps_masked_entries_and_gates_the_rest():
    flow = MaskedRealNVP(6, 4).double()
    randomise(flow, 1.0)
    z = torch.randn(200, 6, dtype=torch.float64)
    kept = draw_masks([FlowChain(FlowKind.REAL_NVP, 6, 1, hidden=4)], z.unsqueeze(0))[0, :, 0]
    # Half of the entries, drawn per row: 1200 coins.
    assert 0.4 < kept.double().mean() < 0.6
    assert len(kept.unique(dim=0)) > 10
    mapped, log_det = flow(z, kept)
    assert torch.equal(mapped == z, kept)
    hidden = torch.tanh(flow.hidden(kept * z))
    gate, shift = torch.sigmoid(flow.gate(hidden)), flow.shift(hidden)
    expected = torch.where(kept, z, gate * z + (1 - gate) * shift)
    torch.testing.assert_close(mapped, expected)
    torch.testing.assert_close(log_det, (gate.log() * ~kept).sum(1))


@pytest.mark.parametrize("scale", [0.05, 1.0, 5.0])
def test_planar_steps_are_increasing_along_their_normal(scale: float):
    # wᵀf(z) increases with wᵀz, and the orthogonal part only moves by a function of it:
    # together the map is one to one.
    z = torch.linspace(-8, 8, 4001, dtype=torch.float64).unsqueeze(1)
    for seed in range(20):
        torch.manual_seed(seed)
        flow = Planar(1)
        randomise(flow, scale)
        mapped, log_det = flow(z, torch.zeros_like(z, dtype=torch.bool))
        assert (mapped.diff(dim=0) > 0).all()
        assert torch.isfinite(log_det).all()


def test_planar_step_without_direction_is_the_identity():
    flow = Planar(3)
    nn.init.zeros_(flow.direction)
    z = torch.randn(5, 3)
    mapped, log_det = flow(z, torch.zeros_like(z, dtype=torch.bool))
    torch.testing.assert_close(mapped, z)
    torch.testing.assert_close(log_det, torch.zeros(5))


@pytest.mark.parametrize(("kind", "dim"), [(FlowKind.PLANAR, 1), (FlowKind.PLANAR, 20)])
def test_planar_multipliers_start_around_one(kind: FlowKind, dim: int):
    # Ten fresh flows: each mean of z is 1 to within its random parameters' few hundredths.
    z, _ = draw_multipliers([MultiplierFlow(dim, kind, 2) for _ in range(10)], 2000)
    assert z.mean().item() == pytest.approx(1, abs=0.05)


def test_real_nvp_multipliers_start_around_one():
    flows = [MultiplierFlow(20, FlowKind.REAL_NVP, 2) for _ in range(10)]
    z, _ = draw_multipliers(flows, 2000)
    assert z.mean().item() == pytest.approx(1, abs=0.05)


def test_log_density_of_the_multiplier_is_the_entropy_on_average():
    # In one dimension H(z) = H(z₀) + E log f′(z₀), with f′ by finite differences.
    multiplier = MultiplierFlow(1, FlowKind.PLANAR, 2)
    randomise(multiplier.flow, 1.0)
    multiplier.double()
    with torch.no_grad():
        _, log_prob = draw_multipliers([multiplier], 200_000)
        scale = (0.5 * multiplier.log_variance).exp()
        base = multiplier.loc + scale * torch.linspace(-7, 7, 20_001).double().unsqueeze(1)
        mapped = multiplier.flow(base, draw_masks([multiplier.flow], base[None])[0])[0]
    weight = (-0.5 * ((base[1:] + base[:-1]) / 2 - multiplier.loc).square() / scale**2).exp()
    weight = weight / weight.sum()
    slope = (mapped.diff(dim=0) / base.diff(dim=0)).log()
    entropy = 0.5 * math.log(2 * math.pi * math.e * 0.1) + (weight * slope).sum().item()
    # log f′ varies by less than one: 0.002 for the mean of 200 000.
    assert -log_prob.mean().item() == pytest.approx(entropy, abs=0.01)


@pytest.mark.parametrize("steps", [0, 2])
def test_reverse_density_integrates_to_one(steps: int):
    multiplier = MultiplierFlow(1, FlowKind.PLANAR, steps)
    randomise(multiplier.reverse_flow, 1.0)
    multiplier.double()
    for parameter in (
        multiplier.projection,
        multiplier.reverse_loc,
        multiplier.reverse_log_precision,
    ):
        nn.init.constant_(parameter, 1.3)
    grid = torch.linspace(-60, 60, 120_001, dtype=torch.float64)
    for weight in (-2.0, 0.0, 0.7):
        kernels = torch.full((len(grid), 1, 1), weight, dtype=torch.float64)
        z = grid.view(1, -1, 1)
        masks = draw_masks([multiplier.reverse_flow], z)
        density = reverse_log_prob([multiplier], z, [kernels], masks)[0].exp()
        assert torch.trapezoid(density, grid).item() == pytest.approx(1, abs=1e-6)


def test_flows_together_are_the_flows_one_by_one():
    chains = [FlowChain(FlowKind.PLANAR, 3, 2, hidden=4) for _ in range(4)]
    for chain in chains:
        randomise(chain, 1.0)
    z = torch.randn(4, 5, 3, dtype=torch.float64)
    masks = draw_masks(chains, z)
    mapped, log_det = flows_together(chains, z, masks)
    for index, chain in enumerate(chains):
        alone, its_log_det = chain(z[index], masks[index])
        torch.testing.assert_close(mapped[index], alone)
        torch.testing.assert_close(log_det[index], its_log_det)


def test_flows_together_have_masks_of_their_own():
    chain = FlowChain(FlowKind.REAL_NVP, 64, 1, hidden=4)
    z = torch.randn(1, 1, 64).expand(2, 3, 64)
    mapped, _ = flows_together([chain, chain], z, draw_masks([chain, chain], z))
    kept = (mapped == z).flatten(0, 1)
    # Each entry is kept with probability one half: no two of six masks agree in 64 of them.
    assert len({tuple(mask.tolist()) for mask in kept}) == 6
