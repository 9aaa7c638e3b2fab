"""Bayes by Hypernet: weights are what a generator makes of noise, and no density exists."""

from bbh.cost import Cost
from bbh.distribution import WeightDistribution
from bbh.divergences import Divergence
from bbh.divergences.base import check_num_samples
from bbh.generators.base import Hypernetworks
from bbh.noise import GaussianNoise
from bbh.priors import Prior
from bbh.samples import Params


class Implicit(WeightDistribution):
    """w = G(z), z ~ N(0, I); KL(q‖p) is estimated from the samples themselves.

    Args:
        generator: Maps noise to weights.
        noise: What z is, and whether tensors share it.
        divergence: An estimator that needs samples of q only.
        samples_per_step: Weight draws per training step; all take part in the estimate.
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

    def sample(self, num_samples: int) -> Params:
        """generator(noise)."""
        like = next(self.generator.parameters())
        return self.generator(self.noise.sample(num_samples, self.generator.num_groups, like))

    def cost(self, samples: Params, prior: Prior) -> Cost:
        """The estimated divergence."""
        return self.divergence(samples, self.shapes, prior, helper=self.helper)

    def check_prior(self, prior: Prior) -> None:
        """As the divergence demands."""
        prior.check(self.shapes)
        self.divergence.check(prior, has_marginals=False)
