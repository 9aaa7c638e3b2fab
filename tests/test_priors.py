"""Priors: densities as torch.distributions has them, samples that follow them, early errors."""

import math

import pytest
import torch
from torch import Tensor
from torch import distributions as td

from bbh.divergences import ClosedForm, NormalMarginals
from bbh.priors import (
    Centred,
    ElementwisePrior,
    Laplace,
    NoDensityError,
    Normal,
    PerLayer,
    Sampled,
    ScaleMixture,
    StudentT,
)
from bbh.samples import Shapes, as_vector, flatten, unflatten

SHAPES: Shapes = {"a.weight": torch.Size([2, 3]), "a.bias": torch.Size([2]), "t": torch.Size([])}
MIXTURE = td.MixtureSameFamily(
    td.Categorical(torch.tensor([0.25, 0.75]).double()),
    td.Normal(torch.zeros(2).double(), torch.tensor([0.1, 2.0]).double()),
)
PRIORS: list[tuple[ElementwisePrior, td.Distribution, float]] = [
    (Normal(0.7, loc=-0.2), td.Normal(-0.2, 0.7), 0.7**2),
    (Laplace(0.5), td.Laplace(0.0, 0.5), 2 * 0.5**2),
    (StudentT(df=9.0, scale=0.5), td.StudentT(9.0, 0.0, 0.5), 0.5**2 * 9 / 7),
    (ScaleMixture((0.1, 2.0), (0.25, 0.75)), MIXTURE, 0.25 * 0.01 + 0.75 * 4),
]
over_priors = pytest.mark.parametrize(
    ("prior", "reference", "variance"), PRIORS, ids=lambda value: type(value).__name__
)


def like(dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    return {name: torch.zeros(1, *shape, dtype=dtype) for name, shape in SHAPES.items()}


@over_priors
def test_log_density_is_torchs(prior: ElementwisePrior, reference, variance: float):
    values = torch.cat([3 * torch.randn(100), torch.tensor([0.0, 1e-8, -40.0, 40.0])]).double()
    torch.testing.assert_close(prior.log_prob("w", values), reference.log_prob(values))


@over_priors
def test_density_integrates_to_one(prior: ElementwisePrior, reference, variance: float):
    grid = torch.linspace(-400, 400, 800_001, dtype=torch.float64)
    density = prior.log_prob("w", grid).exp()
    # Student's t with nine degrees of freedom leaves 10⁻²⁰ outside; the step is a hundredth of
    # the narrowest scale.
    assert torch.trapezoid(density, grid).item() == pytest.approx(1, abs=1e-5)


@over_priors
def test_samples_follow_the_density(prior: ElementwisePrior, reference, variance: float):
    draws = prior.sample_like(like(torch.float64), SHAPES, 20_000)
    assert {name: value.shape for name, value in draws.items()} == {
        name: (20_000, *shape) for name, shape in SHAPES.items()
    }
    assert draws["t"].dtype == torch.float64
    values = draws["a.weight"].flatten()  # 120 000
    mean = -0.2 if isinstance(prior, Normal) else 0.0
    assert values.mean().item() == pytest.approx(mean, abs=5 * math.sqrt(variance / 120_000))
    # Fourth moments up to six times those of a Gaussian: 0.7 % for the variance.
    assert values.var().item() == pytest.approx(variance, rel=0.04)
    # Cross entropy by samples and by integration: the samples are of this density.
    grid = torch.linspace(-60, 60, 240_001, dtype=torch.float64)
    log_prob = prior.log_prob("w", grid)
    entropy = -torch.trapezoid(log_prob.exp() * log_prob, grid).item()
    assert -prior.log_prob("w", values).mean().item() == pytest.approx(entropy, abs=0.02)
    # Neither weights nor tensors share draws.
    assert torch.corrcoef(draws["a.bias"].T)[0, 1].abs() < 0.04


def test_log_density_sums_over_all_weights_of_a_sample():
    samples = {name: torch.randn(4, *shape) for name, shape in SHAPES.items()}
    result = Normal(2.0).log_density(samples, SHAPES)
    flat = torch.cat([value.reshape(4, -1) for value in samples.values()], dim=1)
    torch.testing.assert_close(result, td.Normal(0.0, 2.0).log_prob(flat).sum(1))
    shifted = Normal(2.0, loc=0.7).log_density(samples, SHAPES)
    torch.testing.assert_close(shifted, td.Normal(0.7, 2.0).log_prob(flat).sum(1))
    only_bias = Normal(2.0).log_density(samples, {"a.bias": torch.Size([2])})
    torch.testing.assert_close(only_bias, td.Normal(0.0, 2.0).log_prob(samples["a.bias"]).sum(1))


def test_per_layer_takes_the_first_match():
    prior = PerLayer({"a.bias": Laplace(3.0), "a.*": Normal(0.1)}, default=StudentT())
    assert prior.of("a.bias") == Laplace(3.0)
    assert prior.of("a.weight") == Normal(0.1)
    assert prior.of("t") == StudentT()
    assert prior.normal("a.weight") == Normal(0.1)
    assert prior.normal("a.bias") is None
    prior.check(SHAPES)
    with pytest.raises(ValueError, match=r"b\.\*"):
        PerLayer({"b.*": Normal()}).check(SHAPES)
    samples = {name: torch.ones(2, *shape) for name, shape in SHAPES.items()}
    one = torch.tensor(1.0)
    expected = (
        6 * td.Normal(0.0, 0.1).log_prob(one)
        + 2 * td.Laplace(0.0, 3.0).log_prob(one)
        + td.StudentT(3.0).log_prob(one)
    )
    torch.testing.assert_close(prior.log_density(samples, SHAPES), expected.expand(2))
    draws = prior.sample_like(samples, SHAPES, 5000)
    # 30 000 draws of scale 0.1.
    assert draws["a.weight"].std().item() == pytest.approx(0.1, rel=0.03)


def test_sampled_prior_has_samples_without_gradient_and_no_density():
    loc = torch.ones(2, 3, requires_grad=True)
    prior = Sampled(lambda n: {"w": loc.expand(n, 2, 3), "unused": torch.zeros(n)})
    shapes: Shapes = {"w": torch.Size([2, 3])}
    prior.check(shapes)
    draws = prior.sample_like({"w": torch.zeros(1, 2, 3, dtype=torch.float64)}, shapes, 4)
    assert draws.keys() == {"w"}
    assert draws["w"].dtype == torch.float64
    assert not draws["w"].requires_grad
    assert not prior.has_density
    with pytest.raises(NoDensityError, match="NearestNeighbour"):
        prior.log_prob("w", torch.zeros(2, 3))
    with pytest.raises(ValueError, match="no tensor 'b'"):
        prior.check({"b": torch.Size([2])})
    with pytest.raises(ValueError, match=r"\(2, 3, 2\) is needed"):
        prior.check({"w": torch.Size([3, 2])})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Normal(0.0), "positive"),
        (lambda: Normal(float("inf")), "finite"),
        (lambda: Laplace(-1.0), "positive"),
        (lambda: StudentT(df=0.0), "df"),
        (lambda: StudentT(scale=float("nan")), "scale"),
        (lambda: ScaleMixture((1.0,), (0.5, 0.5)), "one weight per scale"),
        (lambda: ScaleMixture((1.0, 2.0), (0.5, 0.6)), "sum to one"),
        (lambda: ScaleMixture((1.0, 2.0), (1.5, -0.5)), "sum to one"),
        (lambda: ScaleMixture((1.0, 0.0), (0.5, 0.5)), "positive"),
    ],
)
def test_impossible_priors_are_refused(make, message: str):
    with pytest.raises(ValueError, match=message):
        make()


def test_mixed_precision_does_not_round_the_density():
    samples = {"w": 0.05 * torch.randn(3, 100_000)}
    shapes = {"w": torch.Size([100_000])}
    exact = Normal(1.0).log_density(samples, shapes)
    with torch.autocast("cpu", torch.bfloat16):
        mixed = Normal(1.0).log_density(samples, shapes)
    torch.testing.assert_close(mixed, exact)


# --- Around given weights -------------------------------------------------------------------

CENTRE = {n: torch.linspace(-1, 2, s.numel()).double().view(s) for n, s in SHAPES.items()}


def centred(dtype: torch.dtype = torch.float64) -> tuple[Centred, td.Normal]:
    """N(centre, scale²) with a scale for each tensor, and the same of torch, all in one row."""
    own = PerLayer({"a.weight": Normal(0.1), "a.bias": Normal(2.0, loc=0.5)}, default=Normal(0.3))
    scale = torch.tensor([0.1] * 6 + [2.0] * 2 + [0.3], dtype=dtype)
    shift = torch.tensor([0.0] * 6 + [0.5] * 2 + [0.0], dtype=dtype)
    return Centred(CENTRE, own), td.Normal(as_vector(CENTRE).to(dtype) + shift, scale)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_centred_density_is_torchs(dtype: torch.dtype):
    prior, reference = centred(dtype)
    prior.check(SHAPES)
    flat = torch.randn(4, 9, dtype=dtype)
    samples = unflatten(flat, SHAPES)
    expected = reference.log_prob(flat).sum(1)
    assert expected.dtype == dtype
    torch.testing.assert_close(prior.log_density(samples, SHAPES), expected)
    torch.testing.assert_close(prior.flat_log_density(flat, SHAPES), expected)
    # A part of the tensors, in another order.
    part: Shapes = {"t": SHAPES["t"], "a.bias": SHAPES["a.bias"]}
    terms = unflatten(reference.log_prob(flat), SHAPES)
    expected = flatten(terms, part).sum(1)
    torch.testing.assert_close(prior.log_density(samples, part), expected)
    torch.testing.assert_close(prior.flat_log_density(flatten(samples, part), part), expected)


def test_centred_samples_follow_the_density():
    prior, reference = centred()
    zeros = like(torch.float64)
    for draws in (
        flatten(prior.sample_like(zeros, SHAPES, 20_000), SHAPES),
        prior.sample_flat(zeros, SHAPES, 20_000),
    ):
        standard = (draws - reference.loc) / reference.scale
        # Nine means of 20 000 draws: 0.007 each.
        torch.testing.assert_close(standard.mean(0), torch.zeros(9).double(), rtol=0, atol=0.035)
        torch.testing.assert_close(standard.std(0), torch.ones(9).double(), rtol=0, atol=0.03)


@pytest.mark.parametrize("rows", [None, 3])
def test_centred_gaussians_have_a_closed_form(rows: int | None):
    prior, reference = centred()
    loc = torch.randn(9 if rows is None else (rows, 9)).double()
    scale = torch.rand(9).double() + 0.1
    expected = td.kl_divergence(td.Normal(loc, scale), reference).sum() / (rows or 1)
    samples = unflatten(torch.zeros(1, 9).double(), SHAPES)  # not used
    marginals = NormalMarginals(loc, scale)
    result = ClosedForm()(samples, SHAPES, prior, marginals=marginals).complexity
    torch.testing.assert_close(result, expected)
    # One Gaussian for all tensors takes another path.
    alike = ClosedForm()(samples, SHAPES, Centred(CENTRE, Normal(2.0)), marginals=marginals)
    other = td.Normal(as_vector(CENTRE), 2.0)
    expected = td.kl_divergence(td.Normal(loc, scale), other).sum() / (rows or 1)
    torch.testing.assert_close(alike.complexity, expected)


def test_centred_laplace_has_its_exact_entropy_term():
    prior = Centred({"w": torch.tensor([2.0]).double()}, Laplace(0.5))
    loc, scale = torch.tensor([2.5]).double(), torch.tensor([0.2]).double()
    draws = loc + scale * torch.randn(50_000, 1).double()
    shapes = {"w": torch.Size([1])}
    result = ClosedForm()({"w": draws}, shapes, prior, marginals=NormalMarginals(loc, scale))
    expected = td.kl_divergence(td.Normal(0.5, 0.2), td.Laplace(0.0, 0.5)).item()
    # |w|/0.5 varies by 0.4: 0.002.
    assert result.complexity.item() == pytest.approx(expected, abs=0.01)


def test_centred_on_a_network_keeps_its_weights():
    network = torch.nn.Linear(2, 3)
    prior = Centred.on(network, Normal(0.1))
    before = network.weight.detach().clone()
    with torch.no_grad():
        network.weight.add_(1.0)
    assert torch.equal(prior.values["weight"], before)
    assert not prior.values["weight"].requires_grad
    sampled = Centred.on(network, Sampled(lambda n: {"weight": torch.zeros(n, 3, 2)}))
    assert not sampled.has_density
    draws = sampled.sample_like({"weight": torch.zeros(1, 3, 2)}, {"weight": torch.Size([3, 2])}, 2)
    torch.testing.assert_close(draws["weight"], network.weight.detach().expand(2, 3, 2))


def test_centred_on_other_weights_is_refused():
    with pytest.raises(ValueError, match="'w' has entries that are not finite"):
        Centred({"w": torch.tensor([1.0, math.nan])}, Normal())
    prior = Centred({"w": torch.zeros(2)}, PerLayer({"b*": Normal()}))
    with pytest.raises(
        ValueError, match=r"'v' is missing; the Bayesian parameter has shape \(2,\)"
    ):
        prior.check({"v": torch.Size([2])})
    with pytest.raises(ValueError, match=r"'w' is of shape \(2,\)"):
        prior.check({"w": torch.Size([3])})
    with pytest.raises(ValueError, match=r"b\*"):
        prior.check({"w": torch.Size([2])})
