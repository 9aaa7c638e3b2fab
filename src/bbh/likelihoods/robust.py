"""Likelihoods of numbers with outliers: Student's t and Laplace noise."""

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from bbh.likelihoods.location_scale import CommonScale, LocationScale
from bbh.predictive import RegressionPredictive
from bbh.residuals import Laplace as LaplaceResidual
from bbh.residuals import StudentT as StudentTResidual
from bbh.standardisation import Standardisation

# A learned number of degrees of freedom stays above this, so that a standard deviation exists.
_FEWEST_LEARNED = 2.0
_INITIAL = 4.0
# Steps of the EM algorithm below. Each reduces the distance to the optimum by a factor, and after
# so many nothing changes any more for usual data.
_EM_STEPS = 100


@dataclass(eq=False, repr=False)
class StudentT(LocationScale, CommonScale[RegressionPredictive]):
    """targets = outputs + scale · t, with Student's t noise: single targets may be far off.

    A Gaussian follows outliers, since each costs the square of its distance. Under Student's t the
    cost grows like its logarithm. Location and scale of the targets are learned as medians, which
    outliers hardly change. Lange, Little & Taylor (1989), "Robust statistical modeling using the t
    distribution".

    Args:
        scale: Scale of the noise in the units of the targets; the standard deviation is
            √(ν/(ν − 2)) times as large. None if it is not known: it is then learned.
        df: Degrees of freedom ν, above 1 so that there is a mean. The fewer, the heavier the tails;
            4 is a common choice. None learns them, kept above 2 so that there is a standard
            deviation.
        learned: Whether ``scale`` is only the initial value and is learned with the weights. None
            learns it if no scale is given.
        standardise: Whether ``fit`` learns the targets' loc and scale (see ``Regression``), or a
            ``Standardisation`` to use. None does so if no scale is given.
    """

    scale: float | None = None
    df: float | None = _INITIAL
    learned: bool | None = None
    standardise: bool | Standardisation | None = None
    log_scale: Tensor = field(init=False, repr=False)
    log_more_df: Tensor = field(init=False, repr=False)
    given_df: Tensor = field(init=False, repr=False)

    robust = True

    def __post_init__(self):
        super().__init__()
        if self.df is not None and not 1 < self.df < math.inf:
            raise ValueError(
                f"StudentT(df={self.df}): give degrees of freedom above 1, or None to learn them. "
                "With 1 or fewer, the noise has no mean."
            )
        if self.df is None:
            self.log_more_df = nn.Parameter(torch.tensor(math.log(_INITIAL - _FEWEST_LEARNED)))
        else:  # a buffer, so that it is where the network is
            self.register_buffer("given_df", torch.tensor(float(self.df)), persistent=False)
        self._register_scale()

    @property
    def degrees_of_freedom(self) -> Tensor:
        """The present number of degrees of freedom."""
        if self.df is not None:
            return self.given_df
        return _FEWEST_LEARNED + self.log_more_df.exp()

    @property
    def residual(self) -> StudentTResidual:
        """Student's t with the present number of degrees of freedom."""
        return StudentTResidual(self.degrees_of_freedom)

    def extra_repr(self) -> str:
        """The degrees of freedom, the present scale, and the targets' loc and scale."""
        how = "" if self.df is not None else " (learned)"
        return f"df={float(self.degrees_of_freedom.detach()):.4g}{how}, {super().extra_repr()}"

    def _constant(self, training: Tensor) -> tuple[Tensor, Tensor]:
        # The EM algorithm of Lange et al.: a residual z has the weight (ν + 1) / (ν + z²).
        df = float(self.degrees_of_freedom.detach())
        loc = training.median(0).values
        scale = (training - loc).abs().mean(0).clamp(min=torch.finfo(training.dtype).tiny)
        for _ in range(_EM_STEPS):
            weights = (df + 1) / (df + ((training - loc) / scale).square())
            loc = (weights * training).sum(0) / weights.sum(0)
            scale = (weights * (training - loc).square()).mean(0).sqrt()
            scale = scale.clamp(min=torch.finfo(training.dtype).tiny)
        return loc, scale


@dataclass(eq=False, repr=False)
class Laplace(LocationScale, CommonScale[RegressionPredictive]):
    """targets ~ Laplace(outputs, scale): the network learns the median of the targets.

    An error costs its absolute value over the scale, so this is the likelihood of the L1 loss. It
    bends less to outliers than a Gaussian, and more than ``StudentT``.

    Args:
        scale: Mean absolute deviation of the noise, in the units of the targets; its standard
            deviation is √2 times as large. None if it is not known: it is then learned.
        learned: Whether ``scale`` is only the initial value and is learned with the weights. None
            learns it if no scale is given.
        standardise: Whether ``fit`` learns the targets' loc and scale (see ``Regression``), or a
            ``Standardisation`` to use. None does so if no scale is given.
    """

    scale: float | None = None
    learned: bool | None = None
    standardise: bool | Standardisation | None = None
    log_scale: Tensor = field(init=False, repr=False)

    robust = True

    def __post_init__(self):
        super().__init__()
        self._register_scale()

    @property
    def residual(self) -> LaplaceResidual:
        """The Laplace distribution of scale 1."""
        return LaplaceResidual()

    def _constant(self, training: Tensor) -> tuple[Tensor, Tensor]:
        loc = training.median(0).values
        return loc, (training - loc).abs().mean(0)
