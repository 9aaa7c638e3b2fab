"""The interface of all divergences: from samples of q and a prior to a number of nats."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from jaxtyping import Float
from torch import Tensor, nn

from bbh.distribution import Cost
from bbh.lines import Lines
from bbh.priors import NoDensityError, Prior
from bbh.samples import Shapes, flatten


class NormalMarginals(NamedTuple):
    """Means and standard deviations of a factorised Gaussian q.

    There may be S rows of means, for S Gaussians that share their standard deviations. All weights
    are in one vector, in the order of the shapes, since a few passes over one long vector are
    faster than a few passes over every tensor.
    """

    loc: Float[Tensor, "*S D"]
    scale: Float[Tensor, " D"]


class SummedMarginals(NormalMarginals):
    """The same with what a KL is made of, if whoever drew the samples has summed it up on the way.

    Attributes:
        sums: Σ (loc² + scale²) and Σ log scale of every tensor.
    """

    sums: Float[Tensor, "T 2"]

    @classmethod
    def of(
        cls, loc: Float[Tensor, " D"], scale: Float[Tensor, " D"], sums: Float[Tensor, "T 2"]
    ) -> "SummedMarginals":
        """Means, standard deviations, and the sums."""
        made = cls(loc, scale)
        made.sums = sums
        return made


@dataclass(frozen=True)
class Comparison:
    """Draws of q, the prior p to compare them with, and what else is known about q.

    Attributes:
        samples: Weight samples of q, ``{name: [S, *shape]}``, with gradient.
        shapes: The tensors that enter the divergence.
        prior: The distribution p.
        marginals: Means and scales of q, if q is a factorised Gaussian. They have S rows of means
            if each sample was drawn from a Gaussian with its own means.
        gram: JᵀJ with J = ∂w/∂z, for each sample and each noise vector z, if q is a generator.
        helper: The network that the divergence's ``helper`` built, if any.
        lines: The weights as m + s·h with new draws of h, if q is such a generator.
    """

    samples: Mapping[str, Tensor]
    shapes: Shapes
    prior: Prior
    marginals: NormalMarginals | None = None
    gram: Float[Tensor, "S G Z Z"] | None = None
    helper: nn.Module | None = None
    lines: Lines | None = None

    @property
    def num_samples(self) -> int:
        """S, the number of weight samples."""
        return len(self.samples[next(iter(self.shapes))])

    def flat(self) -> Float[Tensor, "S D"]:
        """All weights of a sample in one row."""
        return flatten(self.samples, self.shapes)

    def prior_flat(self, num_samples: int) -> Float[Tensor, "M D"]:
        """New samples of the prior in the same layout."""
        return self.prior.sample_flat(self.samples, self.shapes, num_samples)


class Divergence(ABC):
    """KL(q‖p), exact or estimated from weight samples of q; ``estimate`` is the method to write.

    A divergence holds settings only, no tensors. If it needs a helper network (a critic), then
    ``helper`` builds it and the weight distribution owns it, so that it is trained, moved and saved
    together with the weights.

    Attributes:
        needs_prior_density: Whether the prior must have a density.
        needs_marginals: Whether q must be a factorised Gaussian, see ``Comparison.marginals``.
        needs_gram: Whether q must be a generator, see ``Comparison.gram``.
        draws_of_lines: The number of draws of h it takes where weights are m + s·h, see
            ``Comparison.lines``; 0 if it needs draws of all weights.
    """

    needs_prior_density: ClassVar[bool] = False
    needs_marginals: ClassVar[bool] = False
    needs_gram: ClassVar[bool] = False
    draws_of_lines: ClassVar[int] = 0

    @abstractmethod
    def estimate(self, comparison: Comparison) -> Cost:
        """The divergence in nats between the q that drew the samples and the prior."""

    def __call__(
        self,
        samples: Mapping[str, Tensor],
        shapes: Shapes,
        prior: Prior,
        *,
        marginals: NormalMarginals | None = None,
        gram: Float[Tensor, "S G Z Z"] | None = None,
        helper: nn.Module | None = None,
        lines: Lines | None = None,
    ) -> Cost:
        """The divergence in nats; the arguments are described in ``Comparison``."""
        comparison = Comparison(samples, shapes, prior, marginals, gram, helper, lines)
        if lines is None:
            check_num_samples(self, comparison.num_samples)
        return self.estimate(comparison)

    def min_samples(self) -> int:
        """The smallest number of weight samples for an estimate."""
        return 1

    def added_noise(self) -> float:
        """Standard deviation of Gaussian noise to add to a generator's draws; 0 for none."""
        return 0.0

    def warn_about(self, num_samples: int) -> None:
        """Warns if the estimate cannot be trusted with this many weight samples per step."""
        del num_samples

    def helper(self, shapes: Shapes) -> nn.Module | None:
        """A network to be trained on the cost's ``auxiliary`` term, or None."""
        del shapes

    def auxiliary_steps(self) -> int:
        """The number of steps on the auxiliary term alone before each training step."""
        return 0

    def pretraining_steps(self) -> int:
        """The number of steps on the auxiliary term alone before training starts."""
        return 0

    def check(self, prior: Prior, *, has_marginals: bool, has_gram: bool = False) -> None:
        """Raises if this divergence cannot be computed for this kind of q and this prior."""
        name = type(self).__name__
        if self.needs_gram and not has_gram:
            raise TypeError(
                f"{name} needs weights that a generator makes from noise. Use it with "
                "bbh.methods.bayes_by_hypernet; for Gaussian weights, ClosedForm is exact."
            )
        if self.needs_marginals and not has_marginals:
            raise TypeError(
                f"{name} needs the density of q, and an implicit distribution has none. Use "
                "bbh.divergences.NearestNeighbourEntropy, JointEntropy, NearestNeighbour or "
                "Adversarial."
            )
        if self.needs_prior_density and not prior.has_density:
            raise NoDensityError(
                f"{name} needs the prior's density, and {type(prior).__name__} is known only by "
                "samples. Use bbh.divergences.NearestNeighbour, JointNearestNeighbour or "
                "Adversarial, which compare samples with samples."
            )


def check_num_samples(divergence: Divergence, num_samples: int) -> None:
    """Raises if there are too few weight samples to estimate from."""
    if num_samples < divergence.min_samples():
        raise ValueError(
            f"{type(divergence).__name__} needs at least {divergence.min_samples()} weight "
            f"samples per step, got {num_samples}: raise num_samples."
        )
