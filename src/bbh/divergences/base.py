"""The interface of all divergences: samples of q and a prior in, nats out."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar, NamedTuple

from jaxtyping import Float
from torch import Tensor, nn

from bbh.distribution import Cost
from bbh.priors import NoDensityError, Prior
from bbh.samples import Shapes


class NormalMarginals(NamedTuple):
    """Means and standard deviations of a factorised Gaussian q, or of S that differ in their means.

    All weights are in one vector, in the order of the shapes they go with: a few passes over it
    are faster than a few per tensor.
    """

    loc: Float[Tensor, "*S D"]
    scale: Float[Tensor, " D"]


class Divergence(ABC):
    """KL(q‖p), exact or estimated from weight samples of q. A value: it holds no tensors.

    A divergence that learns (a critic) describes its helper network; the weight distribution
    that uses it owns the helper, so that it trains, moves and is saved with everything else.
    """

    needs_prior_density: ClassVar[bool] = False
    needs_marginals: ClassVar[bool] = False

    @abstractmethod
    def __call__(
        self,
        samples: Mapping[str, Tensor],
        shapes: Shapes,
        prior: Prior,
        *,
        marginals: NormalMarginals | None = None,
        helper: nn.Module | None = None,
    ) -> Cost:
        """Nats between the q that drew ``samples`` and the prior.

        Args:
            samples: ``{name: [S, *shape]}`` with gradient.
            shapes: Which tensors count.
            prior: The distribution p.
            marginals: Its means and scales, if q is a factorised Gaussian; S rows of means if each
                sample was drawn around means of its own.
            helper: What ``helper`` built.
        """

    def min_samples(self) -> int:
        """How many weight samples an estimate takes at least."""
        return 1

    def helper(self, shapes: Shapes) -> nn.Module | None:
        """A network to be trained on the cost's ``auxiliary`` term, or None."""
        del shapes

    def auxiliary_steps(self) -> int:
        """Steps on the auxiliary term alone before each training step."""
        return 0

    def pretraining_steps(self) -> int:
        """Steps on the auxiliary term alone before training starts."""
        return 0

    def check(self, prior: Prior, *, has_marginals: bool) -> None:
        """Raises at construction if this divergence cannot serve this q and prior."""
        name = type(self).__name__
        if self.needs_marginals and not has_marginals:
            raise TypeError(
                f"{name} needs the density of q, and an implicit distribution has none. Use "
                "bbh.divergences.NearestNeighbourEntropy, NearestNeighbour or Adversarial."
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
