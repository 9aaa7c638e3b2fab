"""Bayes by Hypernet: a generator maps noise to weights, and their density is not known."""

from torch import nn

from bbh.distribution import Cost, WeightDistribution
from bbh.divergences import Divergence, NearestNeighbour, NearestNeighbourEntropy
from bbh.divergences.base import check_num_samples
from bbh.execution import Execution
from bbh.generators import Generator, Hypernetworks
from bbh.generators import default as default_generator
from bbh.likelihoods import Likelihood, P
from bbh.methods.assembly import assemble
from bbh.methods.registry import register
from bbh.network import Forward, Selection, divide
from bbh.noise import GaussianNoise
from bbh.posterior import Posterior, check_parts
from bbh.priors import Normal, Prior
from bbh.samples import Samples

__all__ = ["Implicit", "bayes_by_hypernet"]


@register
def bayes_by_hypernet(
    network: nn.Module,
    likelihood: Likelihood[P],
    prior: Prior = Normal(1.0),
    *,
    generator: Generator | None = None,
    noise: GaussianNoise | None = None,
    divergence: Divergence | None = None,
    num_samples: int = 5,
    bayesian: Selection = None,
    freeze_rest: bool = False,
    forward: Forward | None = None,
    execution: Execution | None = None,
) -> Posterior[P]:
    """Weights generated from noise by hypernetworks, Pawlowski et al. (2018).

    Args:
        generator: ``LayerWise``, ``Sliced`` or ``Single``. None takes a narrow layer-wise
            generator, or a sliced one for networks where the layer-wise one would be too large; see
            ``bbh.generators.default``.
        noise: Dimension of the noise, and whether tensors share it. By default every tensor has its
            own noise of one dimension.
        divergence: Estimator of the KL. None takes the nearest-neighbour entropy with the exact
            prior term, which lacks the bias of the paper's estimator, or the paper's estimator if
            the prior is known only by samples.
        num_samples: The number of weight draws per training step.
    """
    check_parts(likelihood, prior)
    noise = noise or GaussianNoise()
    if divergence is None:
        neighbours = max(1, min(3, num_samples - 1))
        divergence = (
            NearestNeighbourEntropy(neighbours) if prior.has_density else NearestNeighbour()
        )
    divergence.check(prior, has_marginals=False)  # before anything large is built
    network, values, points = divide(network, bayesian, freeze_rest=freeze_rest)
    generator = generator or default_generator({name: v.shape for name, v in values.items()})
    return assemble(
        network,
        Implicit(generator.build(values, noise), noise, divergence, num_samples),
        prior,
        likelihood,
        points=points,
        forward=forward,
        execution=execution,
        chosen={
            "bayesian": list(values),
            "generator": generator,
            "noise": noise,
            "divergence": divergence,
        },
    )


class Implicit(WeightDistribution):
    """w = G(z), z ~ N(0, I); KL(q‖p) is estimated from the samples themselves.

    Args:
        generator: Maps noise to weights.
        noise: Dimension of z, and whether tensors share it.
        divergence: An estimator of the KL that needs nothing but samples of q.
        samples_per_step: The number of weight draws per training step; all enter the estimate.
    """

    def __init__(
        self,
        generator: Hypernetworks,
        noise: GaussianNoise,
        divergence: Divergence,
        samples_per_step: int = 5,
    ):
        super().__init__()
        check_num_samples(divergence, samples_per_step)
        self.generator = generator
        self.noise = noise
        self.divergence = divergence
        self.shapes = generator.shapes
        self.samples_per_step = samples_per_step
        self.auxiliary_steps = divergence.auxiliary_steps()
        self.pretraining_steps = divergence.pretraining_steps()
        helper = divergence.helper(self.shapes)
        self.helper = helper and helper.to(next(generator.parameters()))

    def sample(self, num_samples: int) -> Samples:
        """Draws noise and maps it to weights with the generator."""
        like = next(self.generator.parameters())
        noise = self.noise.sample(num_samples, self.generator.num_groups, like)
        return Samples(self.generator(noise))

    def cost(self, samples: Samples, prior: Prior) -> Cost:
        """The divergence between q and the prior, estimated from these draws."""
        return self.divergence(samples, self.shapes, prior, helper=self.helper)

    def check_prior(self, prior: Prior) -> None:
        """Raises if the divergence cannot work with this prior."""
        prior.check(self.shapes)
        self.divergence.check(prior, has_marginals=False)

    def noise_groups(self) -> dict[tuple[str, ...], int]:
        """One group of all tensors if they share their noise, else the generator's groups."""
        groups = [tuple(self.shapes)] if self.noise.shared else self.generator.groups()
        return dict.fromkeys(groups, self.noise.dim)

    def factored_parameters(self) -> list[nn.Parameter]:
        """The generator's output matrices whose gradient can be kept in factors."""
        return self.generator.factored_parameters()
