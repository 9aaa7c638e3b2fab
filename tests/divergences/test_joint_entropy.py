"""The joint entropy against Gaussians, dense Jacobians, and numerical integration."""

import copy
import math

import pytest
import torch
from torch import Tensor, nn
from torch import distributions as td
from torch.func import jacrev
from torch.utils.data import DataLoader, TensorDataset

import bbh
from bbh.divergences import JointEntropy, NearestNeighbourEntropy
from bbh.generators import Generator, GeneratorModule, LayerWise, Single, Sliced
from bbh.methods import Implicit
from bbh.noise import GaussianNoise
from bbh.priors import Laplace, Normal, Prior, Sampled
from bbh.samples import Params, Samples, Shapes, flatten, unflatten
from bbh.training import make_adam
from scenarios import SmallLeNet, mlp


class Affine(GeneratorModule):
    """w = Az + b for each group: no hypernetwork, so derivatives take the general route."""

    def __init__(self, matrices: list[Tensor]):
        super().__init__()
        self.matrices = nn.ParameterList(matrices)
        self.shapes = {f"w{i}": torch.Size([len(one)]) for i, one in enumerate(matrices)}
        self.num_groups = len(matrices)

    def groups(self) -> list[tuple[str, ...]]:
        return [(name,) for name in self.shapes]

    def forward(self, noise: Tensor) -> Params:
        parts = [noise[:, i] @ one.T + 0.3 for i, one in enumerate(self.matrices)]
        return dict(zip(self.shapes, parts, strict=True))


class Curve(GeneratorModule):
    """A bent line in the plane."""

    num_groups = 1

    def __init__(self):
        super().__init__()
        self.shapes = {"w": torch.Size([2])}
        self.scale = nn.Parameter(torch.tensor(0.7).double())

    def groups(self) -> list[tuple[str, ...]]:
        return [("w",)]

    def forward(self, noise: Tensor) -> Params:
        z = noise[:, 0, 0]
        return {"w": torch.stack([self.scale * z, 0.4 * torch.sin(1.5 * z) + 0.2 * z], dim=1)}


GENERATORS: dict[str, Generator] = {
    "layer-wise": LayerWise(hidden=(6, 7)),
    "layer-wise, wide": LayerWise(hidden=(6, 90)),
    "sliced": Sliced(hidden=(6, 7)),
    "single": Single(hidden=(6, 7)),
    "single, short last chunk": Single(hidden=(6, 7), chunk=11),
    "single, one chunk": Single(hidden=(6, 70), chunk=1000),
}
over_generators = pytest.mark.parametrize("generator", GENERATORS.values(), ids=GENERATORS.keys())
over_noise = pytest.mark.parametrize("shared", [False, True], ids=["independent", "shared"])


def implicit(
    generator: Generator, network: nn.Module, *, shared: bool, dim: int = 3, sigma: float = 0.05
) -> Implicit:
    values = {name: value.detach().double() for name, value in network.named_parameters()}
    noise = GaussianNoise(dim, shared=shared)
    return Implicit(generator.build(values, noise), noise, JointEntropy(sigma), 4)


def dense_entropy(generator: GeneratorModule, noise: Tensor, shared: bool, sigma: float) -> Tensor:
    """Mean entropy of N(·, JJᵀ + σ²I) with the D × D covariance of every draw."""
    entropies = []
    for z in noise:
        start = z[0] if shared else z

        def weights(inputs: Tensor) -> Tensor:
            vectors = inputs.expand(generator.num_groups, -1)
            return flatten(generator(vectors.unsqueeze(0)), generator.shapes)[0]

        jacobian = jacrev(weights)(start).flatten(1)
        size = len(jacobian)
        covariance = jacobian @ jacobian.T + sigma**2 * torch.eye(size, dtype=torch.float64)
        constant = 0.5 * size * math.log(2 * math.pi * math.e)
        entropies.append(0.5 * torch.logdet(covariance) + constant)
    return torch.stack(entropies).mean()


def entropy_of(weights: Implicit, draws: Samples, prior: Prior) -> Tensor:
    """The entropy inside the cost: the prior term is a plain average."""
    prior_term = -prior.log_density(draws, weights.shapes).mean()
    return prior_term - weights.cost(draws, prior).complexity


# --- Exact where the generator is linear ----------------------------------------------------


@over_noise
def test_linear_generators_have_the_entropy_of_their_gaussian(shared: bool):
    matrices = [torch.randn(9, 3).double(), 0.1 * torch.randn(2, 3).double()]
    noise = GaussianNoise(3, shared=shared)
    weights = Implicit(Affine(matrices), noise, JointEntropy(0.2), 4)
    draws = weights.sample(4)
    factor = torch.cat(matrices) if shared else torch.block_diag(*matrices)
    covariance = factor @ factor.T + 0.04 * torch.eye(11).double()
    q = td.MultivariateNormal(torch.full((11,), 0.3).double(), covariance)
    torch.testing.assert_close(entropy_of(weights, draws, Normal()), q.entropy())
    torch.testing.assert_close(entropy_of(weights, draws, Laplace(0.5)), q.entropy())
    # The draws are of this Gaussian, so the cost's mean is the KL.
    p = td.MultivariateNormal(torch.zeros(11).double(), 4 * torch.eye(11).double())
    many = weights.sample(20_000)
    torch.testing.assert_close(
        torch.cov(flatten(many, weights.shapes).detach().T), covariance, rtol=0.1, atol=0.15
    )
    # ½‖w/2‖² varies by less than 7 nats: 0.05 for the mean of 20 000.
    expected = td.kl_divergence(q, p).item()
    result = weights.cost(many, Normal(2.0)).complexity.item()
    assert result == pytest.approx(expected, abs=0.2)


@over_noise
@over_generators
def test_linear_hypernetworks_have_the_entropy_of_their_gaussian(generator, shared: bool):
    linear = type(generator)(**{**vars(generator), "slope": 1.0})
    weights = implicit(linear, mlp(), shared=shared)
    first, second = (entropy_of(weights, weights.sample(1), Normal()) for _ in range(2))
    torch.testing.assert_close(first, second)  # the same everywhere
    zeros = torch.zeros(1, weights.generator.num_groups, 3).double()
    torch.testing.assert_close(first, dense_entropy(weights.generator, zeros, shared, 0.05))


def test_what_correlations_cost():
    # 20 000 weights that move together in 8 directions.
    sigma, matrix = 0.02, 0.1 * torch.randn(20_000, 8).double() / math.sqrt(8)
    weights = Implicit(Affine([matrix]), GaussianNoise(8), JointEntropy(sigma), 4)
    shape = torch.Size([20_000])
    q = td.LowRankMultivariateNormal(
        torch.full(shape, 0.3).double(), matrix, torch.full(shape, sigma**2).double()
    )
    p = td.LowRankMultivariateNormal(
        torch.zeros(shape).double(), torch.zeros(20_000, 1).double(), torch.ones(shape).double()
    )
    joint = td.kl_divergence(q, p).item()
    marginal = td.kl_divergence(td.Normal(q.loc, q.stddev), td.Normal(0.0, 1.0)).sum().item()
    assert marginal < 0.6 * joint
    draws = weights.sample(16)
    # ½‖w‖² moves with z by some 70 nats: 20 for the mean of 16.
    assert weights.cost(draws, Normal()).complexity.item() == pytest.approx(joint, abs=80)
    entropy = entropy_of(weights, draws, Normal())
    torch.testing.assert_close(entropy, q.entropy())
    # An estimator that looks at one weight at a time sees the marginals.
    alone = NearestNeighbourEntropy(3)(draws, weights.shapes, Normal()).complexity.item()
    assert alone < 0.65 * joint


# --- Hypernetworks: the shortcut, the general route, dense Jacobians ------------------------


@over_noise
@over_generators
@pytest.mark.parametrize("make", [mlp, SmallLeNet])
def test_generators_agree_with_dense_jacobians(make, generator, shared: bool):
    weights = implicit(generator, make(), shared=shared)
    module = weights.generator
    noise = weights.noise.sample(2, module.num_groups, torch.zeros(1).double())
    by_features = module.jacobian_gram(noise)
    torch.testing.assert_close(by_features, GeneratorModule.jacobian_gram(module, noise))
    gram = by_features.sum(1, keepdim=True) if shared else by_features
    zero = unflatten(torch.zeros(2, 1).double().expand(2, _size(module.shapes)), module.shapes)
    cost = JointEntropy(0.05)(zero, module.shapes, Normal(), gram=gram).complexity
    entropy = -Normal().log_density(zero, module.shapes).mean() - cost
    torch.testing.assert_close(entropy, dense_entropy(module, noise, shared, 0.05))


def _size(shapes: Shapes) -> int:
    return sum(math.prod(shape) for shape in shapes.values())


@over_noise
@over_generators
def test_gradients_are_those_of_dense_jacobians(generator, shared: bool):
    weights = implicit(generator, mlp(), shared=shared, dim=2)
    module = weights.generator
    parameters = [value for name, value in module.named_parameters() if "output_bias" not in name]
    noise = weights.noise.sample(3, module.num_groups, torch.zeros(1).double())
    gram = module.jacobian_gram(noise)
    gram = gram.sum(1, keepdim=True) if shared else gram
    identity = torch.eye(2).double()
    ours = 0.5 * torch.logdet(identity + gram / 0.05**2).sum(1).mean()
    theirs = dense_entropy(module, noise, shared, 0.05)
    for first, second in zip(
        torch.autograd.grad(ours, parameters, allow_unused=True),
        torch.autograd.grad(theirs, parameters, allow_unused=True),
        strict=True,
    ):
        # Biases have none: which side of zero a unit is on does not change with them.
        torch.testing.assert_close(torch.zeros_like(second) if first is None else first, second)


def test_one_noise_vector_with_more_dimensions_than_weights():
    weights = Implicit(Affine([torch.randn(2, 5).double()]), GaussianNoise(5), JointEntropy(0.3), 1)
    (matrix,) = weights.generator.parameters()
    covariance = matrix @ matrix.T + 0.09 * torch.eye(2).double()
    expected = td.MultivariateNormal(torch.zeros(2).double(), covariance).entropy()
    torch.testing.assert_close(entropy_of(weights, weights.sample(1), Normal()), expected)


# --- Numerical integration where it bends ---------------------------------------------------


def test_a_curved_generator_has_its_numerical_kl():
    sigma, curve = 0.05, Curve()
    weights = Implicit(curve, GaussianNoise(1), JointEntropy(sigma), 1)
    z = torch.linspace(-6, 6, 801, dtype=torch.float64)
    with torch.no_grad():
        centres = curve(z.view(-1, 1, 1))["w"]
        log_mass = td.Normal(0.0, 1.0).log_prob(z) + math.log(z[1] - z[0])
        x = torch.linspace(-4.5, 4.5, 301, dtype=torch.float64)
        y = torch.linspace(-1.8, 1.8, 121, dtype=torch.float64)
        log_q = torch.stack(
            [
                torch.logsumexp(
                    log_mass[:, None]
                    - ((centres[:, :1] - one).square() + (centres[:, 1:] - y).square())
                    / (2 * sigma**2),
                    dim=0,
                )
                for one in x
            ]
        ) - math.log(2 * math.pi * sigma**2)
        cell = (x[1] - x[0]) * (y[1] - y[0])
        log_p = td.Normal(0.0, 1.0).log_prob(x)[:, None] + td.Normal(0.0, 1.0).log_prob(y)
        q = log_q.exp()
        assert (q.sum() * cell).item() == pytest.approx(1, abs=1e-4)
        expected = (q * (log_q - log_p)).sum().item() * cell.item()
        draws = weights.sample(100_000)
        result = weights.cost(draws, Normal()).complexity.item()
    # The terms of a draw vary by 0.5 nats: 0.002 for their mean. σ is a fourteenth of the radius
    # over which the curve bends most, 0.7, so the linearisation is good to about σ² = 0.003.
    assert result == pytest.approx(expected, abs=0.01)


# --- Training -------------------------------------------------------------------------------


@pytest.mark.slow
def test_minimised_on_a_gaussian_posterior_it_finds_correlations():
    # y = ax + b + noise with inputs far from zero: slope and offset are correlated by −0.95.
    inputs = torch.linspace(1, 3, 20).view(-1, 1)
    targets = 0.5 * inputs - 0.2 + 0.5 * torch.randn(20, 1)
    design = torch.cat([inputs, torch.ones(20, 1)], dim=1)
    precision = design.T @ design / 0.25 + torch.eye(2)
    covariance = torch.linalg.inv(precision)
    mean = covariance @ design.T @ targets[:, 0] / 0.25
    posterior = bbh.methods.bayes_by_hypernet(
        nn.Linear(1, 1),
        bbh.likelihoods.Gaussian(0.5),
        Normal(),
        generator=Single(hidden=(8,), slope=1.0),
        noise=GaussianNoise(2),
        divergence=JointEntropy(0.01),
        num_samples=16,
    )
    optimizer = torch.optim.Adam(posterior.parameters(), lr=0.02)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 500)
    step = bbh.TrainingStep(posterior, optimizer, num_data=20)
    for _ in range(500):
        step((inputs, targets))
        schedule.step()
    with torch.no_grad():
        draws = flatten(posterior.sample(5000), posterior.weights.shapes)
    # Standard deviations are 0.19 and 0.40.
    torch.testing.assert_close(draws.mean(0), mean, rtol=0, atol=0.08)
    found = torch.cov(draws.T)
    torch.testing.assert_close(found.diag().sqrt(), covariance.diag().sqrt(), rtol=0.15, atol=0)
    correlation = found[0, 1] / (found[0, 0] * found[1, 1]).sqrt()
    assert correlation.item() == pytest.approx(-0.95, abs=0.04)


@pytest.mark.parametrize("shared", [False, True])
def test_fit_predict_save_and_load(tmp_path, shared: bool):
    inputs = torch.randn(60, 4)
    targets = (inputs[:, 0] > 0).long()
    network = mlp()
    posterior = bbh.methods.bayes_by_hypernet(
        network,
        bbh.likelihoods.Categorical(),
        bbh.priors.Centred.on(network, Normal(0.3)),
        noise=GaussianNoise(2, shared=shared),
        divergence=JointEntropy(),
        num_samples=1,
    )
    loader = DataLoader(TensorDataset(inputs, targets), batch_size=20)
    history = bbh.fit(posterior, loader, epochs=10, learning_rate=0.03, progress=False)
    complexities = [one.complexity for one in history]
    assert all(math.isfinite(one) for one in complexities)
    assert bbh.evaluate(posterior, loader)["error"] < 15
    bbh.save(posterior, tmp_path / "file")
    loaded = bbh.load(tmp_path / "file", mlp())
    torch.manual_seed(1)
    expected = bbh.predict(posterior, inputs, num_samples=5).mean
    torch.manual_seed(1)
    assert torch.equal(bbh.predict(loaded, inputs, num_samples=5).mean, expected)


# Few vectors are multiplied with the output matrix itself, many would be with its Gram matrix.
@pytest.mark.parametrize("dim", [2, 30])
def test_factored_gradients_include_those_of_the_gram_matrix(dim: int):
    network = nn.Linear(60, 30)
    posteriors = [
        bbh.methods.bayes_by_hypernet(
            network,
            bbh.likelihoods.Categorical(),
            generator=LayerWise(hidden=(4, 40)),
            noise=GaussianNoise(dim, shared=True),
            divergence=JointEntropy(0.05),
            num_samples=3,
        )
    ]
    posteriors.append(copy.deepcopy(posteriors[0]))
    batch = torch.randn(8, 60), torch.arange(8)
    optimizers = [
        make_adam(posteriors[0].weights, posteriors[0].parameters(), lr=1e-2),
        torch.optim.Adam(posteriors[1].parameters(), lr=1e-2),
    ]
    large = posteriors[0].weights.factored_parameters()[0]
    assert large.numel() >= 2**16
    norms = []
    for posterior, optimizer in zip(posteriors, optimizers, strict=True):
        torch.manual_seed(5)
        step = bbh.TrainingStep(posterior, optimizer, num_data=8, gradient_clip=1.0)
        norms.append([step(batch)["gradient_norm"] for _ in range(3)])
        step.close()
    assert large.grad is None
    assert norms[0] == pytest.approx(norms[1], rel=1e-3)
    for first, second in zip(*(one.parameters() for one in posteriors), strict=True):
        torch.testing.assert_close(first, second, rtol=1e-3, atol=2e-4)


def test_mixed_precision_does_not_round_the_gram_matrix():
    module = implicit(LayerWise(hidden=(8, 40)), mlp(), shared=False).generator.float()
    noise = torch.randn(3, module.num_groups, 3)
    with torch.autocast("cpu", torch.bfloat16):
        mixed = module.jacobian_gram(noise)
    assert torch.equal(mixed, module.jacobian_gram(noise))


# --- Draws ----------------------------------------------------------------------------------


def test_the_cost_is_the_mean_over_draws():
    weights = implicit(LayerWise(hidden=(8,)), mlp(), shared=False)
    draws = weights.sample(4)
    parts = [weights.cost(draws.take(slice(i, i + 1)), Normal()).complexity for i in range(4)]
    torch.testing.assert_close(weights.cost(draws, Normal()).complexity, sum(parts) / 4)


def test_draws_without_gradient_cost_without_gradient():
    weights = implicit(LayerWise(hidden=(8,)), mlp(), shared=False)
    with torch.no_grad():
        draws = weights.sample(2)
    assert not weights.cost(draws, Normal()).complexity.requires_grad
    draws = weights.sample(2)
    with torch.no_grad():
        before = weights.cost(draws, Normal()).complexity
    after = weights.cost(draws, Normal()).complexity
    assert after.requires_grad
    assert after == before


def test_draws_contain_the_noise():
    weights = Implicit(Affine([torch.zeros(50, 1)]), GaussianNoise(1), JointEntropy(0.2), 1)
    draws = weights.sample(2000)["w0"].detach()
    # 100 000 numbers: their standard deviation is known to 0.3 %.
    assert (draws - 0.3).std().item() == pytest.approx(0.2, rel=0.01)
    # N(0.3, 0.2²) fifty times.
    expected = 50 * td.kl_divergence(td.Normal(0.3, 0.2), td.Normal(0.0, 1.0)).item()
    result = weights.cost(weights.sample(2000), Normal()).complexity.item()
    assert result == pytest.approx(expected, abs=0.1)


# --- Early errors ---------------------------------------------------------------------------


@pytest.mark.parametrize("sigma", [0.0, -1.0, math.inf, math.nan])
def test_impossible_noise_is_refused(sigma: float):
    with pytest.raises(ValueError, match="sigma must be positive"):
        JointEntropy(sigma)


def test_what_it_needs_is_said_early():
    likelihood = bbh.likelihoods.Categorical()
    with pytest.raises(TypeError, match="bayes_by_hypernet"):
        bbh.methods.bayes_by_backprop(mlp(), likelihood, divergence=JointEntropy())
    with pytest.raises(TypeError, match="known only by samples"):
        bbh.methods.bayes_by_hypernet(
            mlp(), likelihood, Sampled(lambda n: {}), divergence=JointEntropy()
        )
    values = {"w": torch.randn(2, 3)}
    with pytest.raises(TypeError, match="generator that made the draws"):
        JointEntropy()(values, {"w": torch.Size([3])}, Normal())
    weights = implicit(LayerWise(hidden=(8,)), mlp(), shared=False)
    with pytest.raises(KeyError, match="of the same distribution"):
        weights.cost(Samples(dict(weights.sample(2))), Normal())
