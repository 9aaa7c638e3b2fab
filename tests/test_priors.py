"""Priors: densities as torch.distributions has them, samples that follow them, early errors."""

import math

import pytest
import torch
from torch import Tensor
from torch import distributions as td

from bbh.priors import (
    ElementwisePrior,
    Laplace,
    NoDensityError,
    Normal,
    PerLayer,
    Sampled,
    ScaleMixture,
    StudentT,
)
from bbh.samples import Shapes

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
