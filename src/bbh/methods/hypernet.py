"""Bayes by Hypernet: a generator maps noise to weights, and their density is not known."""

import torch
from torch import Tensor, nn

from bbh.distribution import Cost, TrainingDefaults, WeightDistribution
from bbh.divergences import Divergence, NearestNeighbour, NearestNeighbourEntropy
from bbh.divergences.base import check_num_samples
from bbh.execution import Execution
from bbh.generators import Generator, GeneratorModule
from bbh.generators import default as default_generator
from bbh.likelihoods import Likelihood, P
from bbh.methods.assembly import assemble
from bbh.methods.registry import register
from bbh.network import Forward, Selection, divide, width
from bbh.noise import GaussianNoise
from bbh.posterior import Posterior, check_parts
from bbh.priors import FanIn, Prior
from bbh.samples import Params, Samples, size

__all__ = ["Implicit", "bayes_by_hypernet"]


@register
def bayes_by_hypernet(
    network: nn.Module,
    likelihood: Likelihood[P],
    prior: Prior | None = None,
    *,
    generator: Generator | None = None,
    noise: GaussianNoise | None = None,
    divergence: Divergence | None = None,
    num_samples: int = 10,
    bayesian: Selection = None,
    freeze_rest: bool = False,
    forward: Forward | None = None,
    execution: Execution | None = None,
) -> Posterior[P]:
    """Weights generated from noise by hypernetworks, Pawlowski et al. (2018).

    Args:
        generator: ``LayerWise``, ``Sliced``, ``Single``, ``LowRank`` or ``Directions``. None takes
            a narrow layer-wise generator, or ``Directions`` for networks and adapters where the
            layer-wise one would be too large; see ``bbh.generators.default``.
        prior: Distribution of the weights before the data. None takes ``bbh.priors.FanIn`` with the
            scale that suits the likelihood, and 1 for hidden-to-hidden kernels of recurrent layers.
        noise: Dimension of the noise, whether tensors share it, and how generators get it. None
            takes four dimensions that all tensors share.
        divergence: Estimator of the KL. None takes the nearest-neighbour entropy with the exact
            prior term, or the paper's estimator if the prior is known only by samples.
        num_samples: The number of weight draws per training step. All enter the divergence, and by
            default five of them the likelihood: see ``fit(likelihood_samples=…)``. Only these five
            are made where the divergence does without draws of all weights, as it does with
            ``Directions``.
    """
    prior = prior or FanIn(likelihood.prior_scale, recurrent=1.0)
    check_parts(likelihood, prior)
    noise = noise or GaussianNoise(4, shared=True)
    if divergence is None:
        divergence = NearestNeighbourEntropy() if prior.has_density else NearestNeighbour()
    divergence.check(prior, has_marginals=False, has_gram=True)  # before anything large is built
    network, values, points = divide(network, bayesian, freeze_rest=freeze_rest)
    if generator is None:
        frozen = sum(value.numel() for value in network.parameters() if not value.requires_grad)
        generator = default_generator({name: v.shape for name, v in values.items()}, frozen)
    return assemble(
        network,
        Implicit(
            generator.build(values, noise),
            noise,
            divergence,
            num_samples,
            width=width(network, values),
        ),
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


# Networks of up to this width have the temperature 1, and wider ones less in proportion: see
# docs/temperature.md.
_NARROW = 75


class Implicit(WeightDistribution):
    """w = G(z), z ~ N(0, I); KL(q‖p) is estimated from the samples themselves.

    Some divergences add noise: w = G(z) + σε.

    Args:
        generator: Maps noise to weights.
        noise: Dimension of z, and whether tensors share it.
        divergence: An estimator of the KL that needs samples of q, or its generator's derivative.
        samples_per_step: The number of weight draws per training step; all enter the estimate.
            At most five enter the likelihood too, unless ``fit`` is told otherwise: a draw in the
            likelihood costs a pass through the network.
        width: How wide the network is (``bbh.network.width``), if that is known.

    Attributes:
        on_lines: Whether weights are m + s·h and the divergence takes draws of h instead of draws
            of all weights. A step then has no more draws than enter the likelihood.
    """

    # Chosen on validation parts of eight UCI sets, of diabetes, Friedman's problem and digits.
    # These sweeps are not on record.
    training_defaults = TrainingDefaults(learning_rate=3e-3, annealing=0.3, cooling=1 / 3)

    def __init__(
        self,
        generator: GeneratorModule,
        noise: GaussianNoise,
        divergence: Divergence,
        samples_per_step: int = 10,
        width: int = 0,
    ):
        super().__init__()
        self.on_lines = divergence.draws_of_lines > 0 and generator.has_lines
        if not self.on_lines:
            check_num_samples(divergence, samples_per_step)
            divergence.warn_about(samples_per_step)
        self.generator = generator
        self.noise = noise
        self.divergence = divergence
        self.shapes = generator.shapes
        self.width = width
        self.likelihood_samples = min(5, samples_per_step)
        # Draws that do not enter the likelihood are made for the divergence.
        self.samples_per_step = self.likelihood_samples if self.on_lines else samples_per_step
        self.auxiliary_steps = divergence.auxiliary_steps()
        self.pretraining_steps = divergence.pretraining_steps()
        helper = divergence.helper(self.shapes)
        self.helper = helper and helper.to(next(generator.parameters()))

    def sample(self, num_samples: int) -> Samples:
        """Draws noise and maps it to weights; adds noise to them if the divergence asks for it."""
        noise = self._draw_noise(num_samples)
        inputs = self.noise.encoded(noise)
        weights = self.generator(inputs)
        if sigma := self.divergence.added_noise():
            weights = {n: w + sigma * torch.randn_like(w) for n, w in weights.items()}
        if self.on_lines:
            more = self.noise.encoded(self._draw_noise(self.divergence.draws_of_lines))
            return Samples(weights, common={"noise_of_lines": more})
        if not self.divergence.needs_gram:
            return Samples(weights)
        with_gradient = torch.is_grad_enabled()

        def gram() -> Params:
            """JᵀJ at the noise of these draws, which only the cost asks for."""
            with torch.set_grad_enabled(with_gradient):
                by_vector = self.noise.gram(noise, self.generator.jacobian_gram(inputs))
            # If all tensors move with one vector, they add up.
            return {"gram": by_vector.sum(1, keepdim=True) if self.noise.shared else by_vector}

        return Samples(weights, latents={"noise": noise, "inputs": inputs}, later=gram)

    def draws_per_step(self, likelihood_samples: int | None = None) -> int:
        """All enter the divergence; on lines none does, and those in the likelihood are enough."""
        enough = likelihood_samples if self.on_lines else None
        return enough or self.samples_per_step

    def own_temperature(self, num_data: float) -> float:
        """1 if there is an example for each weight, or if the network is narrow; else less.

        In a wide network the complexity would outweigh the data, and weights would follow their
        prior.
        """
        wanted = max(num_data / size(self.shapes), _NARROW / max(1, self.width))
        # Two digits are as much as is known of it.
        return float(f"{min(1.0, wanted):.2g}")

    def cost(self, samples: Samples, prior: Prior) -> Cost:
        """The divergence between q and the prior, estimated from these draws."""
        gram = samples.latent("gram") if self.divergence.needs_gram else None
        lines = self.generator.lines(samples.latent("noise_of_lines")) if self.on_lines else None
        return self.divergence(
            samples, self.shapes, prior, gram=gram, helper=self.helper, lines=lines
        )

    def _draw_noise(self, num_samples: int) -> Tensor:
        like = next(self.generator.parameters())
        return self.noise.sample(num_samples, self.generator.num_groups, like)

    def check_prior(self, prior: Prior) -> None:
        """Raises if the divergence cannot work with this prior."""
        prior.check(self.shapes)
        self.divergence.check(prior, has_marginals=False, has_gram=True)

    def noise_groups(self) -> dict[tuple[str, ...], int]:
        """One group of all tensors if they share their noise, else the generator's groups."""
        groups = [tuple(self.shapes)] if self.noise.shared else self.generator.groups()
        return dict.fromkeys(groups, self.noise.dim)

    def factored_parameters(self) -> list[nn.Parameter]:
        """The generator's output matrices whose gradient can be kept in factors."""
        return self.generator.factored_parameters()
