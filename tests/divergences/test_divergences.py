"""Every divergence against a closed form, a brute-force twin, or both."""

import math

import pytest
import torch
from torch import Tensor
from torch import distributions as td

import bbh
from bbh.divergences import (
    Adversarial,
    ClosedForm,
    Divergence,
    JointNearestNeighbour,
    NearestNeighbour,
    NearestNeighbourEntropy,
    NormalMarginals,
    normal_kl,
)
from bbh.divergences.adversarial import Critic
from bbh.divergences.neighbours import nearest_of, neighbour_distance
from bbh.priors import Laplace, Normal, PerLayer, Prior, Sampled, ScaleMixture, StudentT
from bbh.samples import Params, Shapes, as_vector

ESTIMATORS = [
    NearestNeighbour(),
    NearestNeighbour(prior_samples=40),
    JointNearestNeighbour(),
    NearestNeighbourEntropy(neighbours=1),
    NearestNeighbourEntropy(neighbours=3),
]


def true_kl(loc: float, scale: float) -> float:
    return td.kl_divergence(td.Normal(loc, scale), td.Normal(0.0, 1.0)).item()


def mean_estimate(
    divergence: Divergence,
    loc: float,
    scale: float,
    *,
    num_samples: int = 5,
    repetitions: int = 100_000,
    prior: Prior | None = None,
) -> float:
    """Many independent weights with the same q are many repetitions for one weight."""
    samples = {"w": loc + scale * torch.randn(num_samples, repetitions)}
    shapes = {"w": torch.Size([repetitions])}
    return divergence(samples, shapes, prior or Normal()).complexity.item() / repetitions


def estimate(divergence: Divergence, values: Tensor, reference: Tensor | None = None) -> Tensor:
    """For one tensor; the prior's samples are fixed where ``reference`` is given."""
    shapes = {"w": values.shape[1:]}
    prior = Normal() if reference is None else Sampled(lambda n: {"w": reference[:n]})
    return divergence({"w": values}, shapes, prior).complexity


# --- The paper's estimator ------------------------------------------------------------------


# The table of measured means in the specification, 200 000 repetitions each.
@pytest.mark.parametrize(
    ("loc", "scale", "expected"),
    [
        (0.0, 1.0, 0.03),
        (0.0, 0.1, 1.90),
        (0.0, 0.01, 4.16),
        (1.0, 0.1, 2.38),
        (2.0, 0.1, 3.54),
        (3.0, 0.1, 4.44),
        (5.0, 0.1, 5.26),
        (10.0, 1.0, 3.80),
        (0.0, 2.0, 0.04),
        (0.0, 5.0, 0.38),
    ],
)
def test_papers_estimator_has_its_known_bias(loc: float, scale: float, expected: float):
    # One estimate has a standard deviation of at most 1.35 nats: 100 000 of them 0.004; the
    # table is rounded to 0.01.
    assert mean_estimate(NearestNeighbour(), loc, scale) == pytest.approx(expected, abs=0.02)


def test_more_prior_samples_repair_far_means():
    # 20 000 estimates with a standard deviation below 1.5 nats: 0.011, three times.
    result = mean_estimate(NearestNeighbour(prior_samples=500), 3.0, 0.1, repetitions=20_000)
    assert result == pytest.approx(6.39, abs=0.035)


@pytest.mark.parametrize("scale", [0.03, 0.5, 1.0, 4.0])
def test_two_samples_and_one_of_the_prior_have_an_exact_mean(scale: float):
    # log|N(0, a²)| has mean log a − (γ + log 2)/2, so the ratio of two distances leaves
    # ½ log((1 + s²)/(2s²)). The standard deviation of an estimate is at most 1.6 nats.
    expected = 0.5 * math.log((1 + scale**2) / (2 * scale**2))
    result = mean_estimate(NearestNeighbour(prior_samples=1), 0.0, scale, num_samples=2)
    assert result == pytest.approx(expected, abs=0.02)


@pytest.mark.parametrize("num_samples", [2, 4, 7, 30])
def test_equal_distributions_cost_nothing_with_one_prior_sample_fewer(num_samples: int):
    # Seen from a sample of q = p, n − 1 others and n − 1 prior draws are the same thing.
    divergence = NearestNeighbour(prior_samples=num_samples - 1)
    result = mean_estimate(divergence, 0.0, 1.0, num_samples=num_samples, repetitions=50_000)
    assert result == pytest.approx(0, abs=0.02)


@pytest.mark.parametrize(
    ("num_samples", "num_prior"), [(2, 1), (2, 2), (5, 5), (9, 3), (5, 16), (5, 17), (4, 300)]
)
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_nearest_neighbour_equals_brute_force(num_samples: int, num_prior: int, scale: float):
    values = scale * torch.randn(num_samples, 7, dtype=torch.float64)
    reference = torch.randn(num_prior, 7, dtype=torch.float64)
    values.requires_grad_()
    fast = estimate(NearestNeighbour(num_prior), values, reference)
    within = (values - values[:, None]).square()
    within = within + torch.diag(torch.full((num_samples,), torch.inf))[..., None]
    across = (values - reference[:, None]).square()
    ratio = (across.amin(0) + 1e-8).sqrt() / ((within.amin(0) + 1e-8).sqrt() + 1e-8) + 1e-8
    slow = (ratio.log() + math.log(num_prior / (num_samples - 1))).mean(0).sum()
    torch.testing.assert_close(fast, slow)
    torch.testing.assert_close(
        torch.autograd.grad(fast, values), torch.autograd.grad(slow, values), rtol=1e-6, atol=1e-9
    )


@pytest.mark.parametrize(("num_samples", "num_prior"), [(2, 1), (5, 5), (4, 20)])
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e3])
def test_joint_nearest_neighbour_equals_brute_force(num_samples: int, num_prior: int, scale: float):
    values = (scale * torch.randn(num_samples, 3, 2, dtype=torch.float64)).requires_grad_()
    reference = torch.randn(num_prior, 3, 2, dtype=torch.float64)
    fast = estimate(JointNearestNeighbour(num_prior), values, reference)
    rows, others = values.flatten(1), reference.flatten(1)
    terms = []
    for i, row in enumerate(rows):
        nu = min((row - rows[j]).square().sum() for j in range(num_samples) if j != i)
        rho = min((row - other).square().sum() for other in others)
        terms.append((((rho + 1e-8).sqrt() / ((nu + 1e-8).sqrt() + 1e-8)) + 1e-8).log())
    slow = 6 * torch.stack(terms).mean() + math.log(num_prior / (num_samples - 1))
    torch.testing.assert_close(fast, slow)
    torch.testing.assert_close(torch.autograd.grad(fast, values), torch.autograd.grad(slow, values))


@pytest.mark.parametrize("scale", [0.1, 0.5, 1.0, 2.0, 5.0])
def test_joint_nearest_neighbour_sees_only_the_average_variance(scale: float):
    # In D dimensions log‖·‖² varies by √(2/D) = 0.01 around its limit; the smallest of a few
    # such distances and log(m/(n − 1))/D shift the estimate by less than 0.01.
    expected = 0.5 * math.log((1 + scale**2) / (2 * scale**2))
    result = mean_estimate(JointNearestNeighbour(), 0.0, scale, repetitions=20_000)
    assert result == pytest.approx(expected, abs=0.02)
    assert (result < 0) == (scale > 1) or scale == 1


def test_joint_nearest_neighbour_is_exact_for_two_samples_in_few_dimensions():
    # As in one dimension: both distances are those of Gaussians of the same shape, so the mean
    # of D · log ratio is D/2 · log((1 + s²)/(2s²)).
    values = 0.3 * torch.randn(2000, 2, 3)
    shapes = {"w": torch.Size([3])}
    divergence = JointNearestNeighbour(prior_samples=1)
    results = torch.stack([divergence({"w": v}, shapes, Normal()).complexity for v in values])
    expected = 1.5 * math.log((1 + 0.09) / (2 * 0.09))
    # The standard deviation of one estimate is about 2 nats: 0.045 for the mean of 2000.
    assert results.mean().item() == pytest.approx(expected, abs=0.15)


# --- Entropy by neighbours, prior by density ------------------------------------------------


@pytest.mark.parametrize(
    ("loc", "scale"), [(0.0, 1.0), (0.0, 0.1), (3.0, 0.1), (5.0, 0.1), (0.0, 2.0), (0.0, 5.0)]
)
def test_entropy_estimator_is_close_to_the_true_kl(loc: float, scale: float):
    # The mean over 400 000 repetitions is known to 0.013 for the widest q (whose prior term
    # varies by 8 nats) and to 0.002 for the narrow ones; the bias at n = 5 is 0.05.
    result = mean_estimate(NearestNeighbourEntropy(), loc, scale, repetitions=400_000)
    assert result == pytest.approx(true_kl(loc, scale), abs=0.1)


@pytest.mark.parametrize("scale", [0.1, 1.0])
def test_entropy_of_two_samples_has_an_exact_mean(scale: float):
    # ψ(2) − ψ(1) = 1 and E log|N(0, 2s²)| = ½ log 2s² − (γ + log 2)/2.
    entropy = 1 + math.log(2) + math.log(scale) - 0.5772156649 / 2
    prior_term = 0.5 * math.log(2 * math.pi) + 0.5 * scale**2
    result = mean_estimate(NearestNeighbourEntropy(1), 0.0, scale, num_samples=2)
    # 100 000 repetitions of at most 1.3 nats.
    assert result == pytest.approx(prior_term - entropy, abs=0.015)


@pytest.mark.parametrize("neighbours", [1, 2, 5, 20])
def test_every_number_of_neighbours_is_consistent(neighbours: int):
    # Kozachenko and Leonenko's estimate of n = 2 000 samples varies by about 0.03; the mean of
    # 100 is known to 0.003. Its bias falls like (k/n)², below 0.01 here. Neighbours are 0.0004
    # apart: the usual floor would be felt.
    divergence = NearestNeighbourEntropy(neighbours, floor=1e-8)
    result = mean_estimate(divergence, 0.5, 0.3, num_samples=2000, repetitions=100)
    assert result == pytest.approx(true_kl(0.5, 0.3), abs=0.02)


@pytest.mark.parametrize(("num_samples", "neighbours"), [(2, 1), (5, 1), (5, 2), (5, 4), (9, 3)])
def test_neighbour_distance_equals_sorting_all_distances(num_samples: int, neighbours: int):
    ordered = torch.randn(num_samples, 50, dtype=torch.float64).sort(dim=0).values
    ordered[:, 0] = ordered[0, 0]  # all equal
    ordered[1, 1] = ordered[0, 1]  # a pair
    distances = (ordered - ordered[:, None]).abs().sort(dim=0).values
    torch.testing.assert_close(neighbour_distance(ordered, neighbours), distances[neighbours])


@pytest.mark.parametrize("num_reference", [1, 2, 16, 17, 100])
def test_nearest_of_finds_the_nearest(num_reference: int):
    reference, values = torch.randn(num_reference, 30), 2 * torch.randn(9, 30)
    index = (values - reference[:, None]).abs().argmin(0)
    torch.testing.assert_close(nearest_of(reference, values), reference.gather(0, index))


def test_entropy_estimator_works_with_every_density():
    # q = N(0, 0.5²) against Laplace(1): E|w| = 0.5·√(2/π).
    expected = math.log(2) + 0.5 * math.sqrt(2 / math.pi) - td.Normal(0.0, 0.5).entropy().item()
    result = mean_estimate(NearestNeighbourEntropy(), 0.0, 0.5, prior=Laplace())
    assert result == pytest.approx(expected, abs=0.1)
    same = ScaleMixture((1.0, 1.0), (0.5, 0.5))
    torch.manual_seed(3)
    mixture = mean_estimate(NearestNeighbourEntropy(), 0.0, 0.5, prior=same)
    torch.manual_seed(3)
    normal = mean_estimate(NearestNeighbourEntropy(), 0.0, 0.5)
    assert mixture == pytest.approx(normal, abs=1e-4)


def test_third_neighbour_tames_the_gradient():
    # 1/ν is not square integrable for the nearest neighbour, 1/ν₃ is: with noise of several
    # dimensions (neighbours in w are strangers in z) the gradient's second moment shows it.
    def second_moment(neighbours: int) -> float:
        values = torch.randn(10, 20_000, requires_grad=True)
        divergence = NearestNeighbourEntropy(neighbours, floor=1e-7)
        (gradient,) = torch.autograd.grad(estimate(divergence, values), values)
        return gradient.square().mean().item()

    assert second_moment(1) > 20 * second_moment(3)


# --- What all estimators share --------------------------------------------------------------


@pytest.mark.parametrize("divergence", ESTIMATORS, ids=str)
def test_gradients_are_those_of_the_value(divergence: Divergence):
    # Away from ties the estimate is smooth; scale 2 keeps distances far above gradcheck's steps.
    reference = 2 * torch.randn(40, 3, dtype=torch.float64)
    values = (2 * torch.randn(5, 3, dtype=torch.float64)).requires_grad_()
    fixed = None if divergence.needs_prior_density else reference
    assert torch.autograd.gradcheck(lambda v: estimate(divergence, v, fixed), values)


@pytest.mark.parametrize("divergence", ESTIMATORS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equal_samples_stay_finite(divergence: Divergence, dtype: torch.dtype):
    values = torch.full((5, 4), 0.3, dtype=dtype, requires_grad=True)
    complexity = estimate(divergence, values)
    (gradient,) = torch.autograd.grad(complexity, values)
    assert torch.isfinite(complexity)
    assert torch.isfinite(gradient).all()
    # 10⁻⁴ is the documented floor of every distance, and its slope bound 1/(2·floor).
    assert gradient.abs().max() <= 5000


@pytest.mark.parametrize("divergence", ESTIMATORS, ids=str)
@pytest.mark.parametrize("scale", [1e-30, 1e-8, 1e8, 1e15])
def test_extreme_scales_stay_finite_in_single_precision(divergence: Divergence, scale: float):
    values = (scale * torch.randn(5, 10)).requires_grad_()
    complexity = estimate(divergence, values)
    (gradient,) = torch.autograd.grad(complexity, values)
    assert torch.isfinite(complexity)
    assert torch.isfinite(gradient).all()


@pytest.mark.parametrize("divergence", ESTIMATORS, ids=str)
def test_order_of_samples_does_not_matter(divergence: Divergence):
    values = torch.randn(5, 6, dtype=torch.float64)
    reference = torch.randn(40, 6, dtype=torch.float64)
    fixed = None if divergence.needs_prior_density else reference
    before = estimate(divergence, values, fixed)
    torch.testing.assert_close(estimate(divergence, values[torch.randperm(5)], fixed), before)


def test_tensors_add_up():
    a, b, c = torch.randn(5, 3), torch.randn(5, 2, 2), torch.randn(5)
    shapes = {"a": torch.Size([3]), "b": torch.Size([2, 2]), "c": torch.Size([])}
    divergence = NearestNeighbourEntropy()
    together = divergence({"a": a, "b": b, "c": c}, shapes, Normal()).complexity
    apart = estimate(divergence, a) + estimate(divergence, b) + estimate(divergence, c[:, None])
    torch.testing.assert_close(together, apart)


def test_correlation_between_weights_costs_nothing():
    # Two perfectly correlated weights have an infinite joint KL; the marginal sum ignores it.
    values = 0.5 * torch.randn(50, 1).expand(50, 2)
    once, twice = (estimate(NearestNeighbourEntropy(), values[:, :k]) for k in (1, 2))
    torch.testing.assert_close(twice, 2 * once)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: NearestNeighbour(prior_samples=0), "prior_samples=0"),
        (lambda: JointNearestNeighbour(prior_samples=-1), "prior_samples=-1"),
        (lambda: NearestNeighbour(floor=0.0), "floor=0"),
        (lambda: NearestNeighbourEntropy(floor=-1.0), "floor=-1"),
        (lambda: NearestNeighbourEntropy(neighbours=0), "neighbours"),
    ],
)
def test_impossible_settings_are_refused(make, message: str):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("divergence", "num_samples"),
    [(NearestNeighbour(), 1), (JointNearestNeighbour(), 1), (NearestNeighbourEntropy(5), 5)],
)
def test_too_few_samples_are_refused(divergence: Divergence, num_samples: int):
    with pytest.raises(ValueError, match="raise num_samples"):
        estimate(divergence, torch.randn(num_samples, 3))
    # And before any training, where a method is made.
    network, likelihood = torch.nn.Linear(2, 1), bbh.likelihoods.Gaussian()
    for method in (bbh.methods.bayes_by_hypernet, bbh.methods.bayes_by_backprop):
        with pytest.raises(ValueError, match="num_samples"):
            method(network, likelihood, divergence=divergence, num_samples=num_samples)
        method(network, likelihood, divergence=divergence, num_samples=num_samples + 1)


# --- Closed form ----------------------------------------------------------------------------


@pytest.mark.parametrize("prior", [Normal(), Normal(0.3), Normal(2.0, loc=-1.0)], ids=str)
def test_normal_kl_is_torchs(prior: Normal):
    loc, scale = torch.randn(100).double(), torch.rand(100).double() * 3 + 1e-6
    expected = td.kl_divergence(td.Normal(loc, scale), td.Normal(prior.loc, prior.scale))
    torch.testing.assert_close(normal_kl(loc, scale, prior), expected.sum())


def closed_form(loc: Tensor, scale: Tensor, prior: Prior, num_samples: int) -> Tensor:
    samples = {"w": loc + scale * torch.randn(num_samples, *loc.shape, dtype=loc.dtype)}
    marginals = NormalMarginals(loc.flatten(), scale.flatten())
    return ClosedForm()(samples, {"w": loc.shape}, prior, marginals=marginals).complexity


def test_closed_form_ignores_the_samples_for_a_gaussian_prior():
    loc, scale = torch.randn(3, 4).double(), torch.rand(3, 4).double()
    expected = td.kl_divergence(td.Normal(loc, scale), td.Normal(0.0, 2.0)).sum()
    torch.testing.assert_close(closed_form(loc, scale, Normal(2.0), 1), expected)


def test_closed_form_is_unbiased_for_other_priors():
    loc, scale = torch.tensor([0.5, -1.0]).double(), torch.tensor([0.5, 0.2]).double()
    q = td.Normal(loc, scale)
    expected = td.kl_divergence(q, td.Laplace(0.0, 0.7)).sum()
    # |w|/0.7 varies by less than one per weight: 0.005 over 100 000 samples.
    result = closed_form(loc, scale, Laplace(0.7), 100_000)
    assert result.item() == pytest.approx(expected.item(), abs=0.02)
    # Student's t with many degrees of freedom is a Gaussian.
    result = closed_form(loc, scale, StudentT(df=1e5), 100_000)
    expected = td.kl_divergence(q, td.Normal(0.0, 1.0)).sum()
    assert result.item() == pytest.approx(expected.item(), abs=0.02)


def test_closed_form_knows_priors_per_layer_and_scalars():
    shapes: Shapes = {"a.weight": torch.Size([2, 2]), "b": torch.Size([])}
    loc: Params = {"a.weight": torch.ones(2, 2), "b": torch.tensor(0.5)}
    scale: Params = {"a.weight": torch.full((2, 2), 0.1), "b": torch.tensor(0.2)}
    samples = {name: loc[name].expand(3, *shape) for name, shape in shapes.items()}
    prior = PerLayer({"a.*": Normal(2.0)}, default=Laplace(1.0))
    marginals = NormalMarginals(as_vector(loc), as_vector(scale))
    result = ClosedForm()(samples, shapes, prior, marginals=marginals).complexity
    gaussian = 4 * (math.log(20) + (0.01 + 1) / 8 - 0.5)
    laplace = math.log(2) + 0.5 - td.Normal(0.0, 0.2).entropy().item()
    assert result.item() == pytest.approx(gaussian + laplace, rel=1e-5)


# --- Critic ---------------------------------------------------------------------------------


def train_critic(
    divergence: Adversarial, q: dict[str, tuple[float, float]], width: int, steps: int = 500
) -> tuple[Critic, Shapes]:
    """A critic after ``steps`` of Adam on fresh samples of Gaussian tensors."""
    shapes: Shapes = {name: torch.Size([width]) for name in q}
    critic = divergence.helper(shapes)
    optimizer = torch.optim.Adam(critic.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        loss = divergence(draw(q, width), shapes, Normal(), helper=critic).auxiliary
        assert isinstance(loss, Tensor)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return critic, shapes


def draw(q: dict[str, tuple[float, float]], width: int, num_samples: int = 5) -> Params:
    return {name: loc + scale * torch.randn(num_samples, width) for name, (loc, scale) in q.items()}


def test_trained_critic_gives_the_closed_form_and_its_gradient():
    divergence = Adversarial(hidden=(32, 32))
    critic, shapes = train_critic(divergence, {"w": (1.0, 0.5)}, width=300)
    loc = torch.ones(300, requires_grad=True)
    samples = {"w": loc + 0.5 * torch.randn(300, 300)}
    complexity = divergence(samples, shapes, Normal(), helper=critic).complexity / 300
    # The critic is a small network with noise of its own; 5 % of the 0.82 nats is generous.
    assert complexity.item() == pytest.approx(true_kl(1.0, 0.5), abs=0.04)
    # ∂KL/∂μ = μ = 1 for each weight: it flows through the samples alone.
    (gradient,) = torch.autograd.grad(complexity, loc)
    assert gradient.sum().item() == pytest.approx(1.0, abs=0.15)


def test_only_a_conditioned_critic_tells_tensors_apart():
    # Two narrow q far apart: the mixture's density is half of each one's own, so the critic
    # that sees the mixture misses log 2 nats per weight.
    q = {"left": (-1.0, 0.2), "right": (1.0, 0.2)}
    exact = true_kl(1.0, 0.2)
    for embedding, expected in ((0, exact - math.log(2)), (2, exact)):
        divergence = Adversarial(hidden=(32, 32), embedding=embedding)
        critic, shapes = train_critic(divergence, q, width=100)
        result = divergence(draw(q, 100, 200), shapes, Normal(), helper=critic).complexity / 200
        # The two answers differ by 0.69; the critics are good to 0.1.
        assert result.item() == pytest.approx(expected, abs=0.1)


def test_critic_and_weights_train_on_separate_terms():
    divergence = Adversarial(hidden=(8,), embedding=3)
    shapes: Shapes = {"w": torch.Size([6]), "b": torch.Size([2])}
    critic = divergence.helper(shapes)
    loc = torch.zeros(6, requires_grad=True)
    samples = {"w": loc + torch.randn(4, 6), "b": torch.randn(4, 2)}
    complexity, auxiliary = divergence(samples, shapes, Normal(), helper=critic)
    assert isinstance(auxiliary, Tensor)
    parameters = list(critic.parameters())
    (to_weights,) = torch.autograd.grad(auxiliary, [loc], allow_unused=True, retain_graph=True)
    assert to_weights is None
    to_critic = torch.autograd.grad(auxiliary, parameters, retain_graph=True)
    assert all(gradient.abs().sum() > 0 for gradient in to_critic)
    (to_weights,) = torch.autograd.grad(complexity, [loc], retain_graph=True)
    assert (to_weights != 0).all()
    to_critic = torch.autograd.grad(complexity.requires_grad_(), parameters, allow_unused=True)
    assert all(gradient is None for gradient in to_critic)


def test_critic_loss_is_the_binary_cross_entropy():
    divergence = Adversarial(hidden=(8,))
    shapes: Shapes = {"w": torch.Size([6])}
    critic = divergence.helper(shapes)
    values, reference = torch.randn(4, 6), torch.randn(4, 6)
    prior = Sampled(lambda n: {"w": reference[:n]})
    complexity, auxiliary = divergence({"w": values}, shapes, prior, helper=critic)
    index = torch.arange(6)
    real, fake = critic(values, index).sigmoid(), critic(reference, index).sigmoid()
    torch.testing.assert_close(auxiliary, -real.log().mean() - (1 - fake).log().mean())
    torch.testing.assert_close(complexity, critic(values, index).mean(0).sum())


def test_a_share_of_the_weights_estimates_all():
    divergence = Adversarial(hidden=(8,), max_weights=20)
    shapes: Shapes = {"w": torch.Size([100])}
    critic = divergence.helper(shapes)
    values = {"w": torch.randn(3, 100)}
    everything = Adversarial(hidden=(8,))(values, shapes, Normal(), helper=critic).complexity
    parts = torch.stack(
        [divergence(values, shapes, Normal(), helper=critic).complexity for _ in range(1000)]
    )
    # Unbiased, and the mean of 1000 is known to its standard error.
    error = parts.std() / math.sqrt(len(parts))
    assert parts.std() > 0
    assert abs(parts.mean() - everything) < 4 * error


def test_critic_needs_its_helper():
    with pytest.raises(TypeError, match="helper"):
        estimate(Adversarial(), torch.randn(3, 2))


@pytest.mark.parametrize(
    "divergence",
    [NearestNeighbour(), JointNearestNeighbour(), NearestNeighbourEntropy(), Adversarial()],
    ids=lambda divergence: type(divergence).__name__,
)
def test_double_precision_networks_keep_it(divergence: Divergence):
    network, likelihood = torch.nn.Linear(2, 1).double(), bbh.likelihoods.Gaussian()
    batch = torch.randn(4, 2).double(), torch.randn(4, 1).double()
    for method in (bbh.methods.bayes_by_backprop, bbh.methods.bayes_by_hypernet):
        posterior = method(network, likelihood, divergence=divergence)
        assert bbh.free_energy(posterior, batch, num_data=4).total.dtype == torch.float64
