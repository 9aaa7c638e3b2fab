"""How residuals, (target − loc) / scale, are distributed: the shapes of observation noise."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor


class Residual(ABC):
    """A distribution of residuals, in its standard form: loc 0 and scale 1."""

    @abstractmethod
    def log_density(self, residuals: Tensor) -> Tensor:
        """The logarithm of the density, differentiable."""

    @abstractmethod
    def distribution_function(self, residuals: Tensor) -> Tensor:
        """The probability of a smaller residual; residuals are in double precision."""

    @abstractmethod
    def quantile(self, level: float) -> float:
        """The residual below which the share ``level`` of all residuals lies."""

    @abstractmethod
    def sample_like(self, values: Tensor) -> Tensor:
        """Random residuals of the shape, type and device of a tensor."""

    @property
    @abstractmethod
    def std(self) -> float:
        """The standard deviation, infinite if there is none."""


@dataclass(frozen=True)
class Normal(Residual):
    """N(0, 1)."""

    def log_density(self, residuals: Tensor) -> Tensor:
        """−½ z² − ½ log 2π."""
        return -0.5 * residuals.square() - 0.5 * math.log(2 * math.pi)

    def distribution_function(self, residuals: Tensor) -> Tensor:
        """Φ(z)."""
        return torch.special.ndtr(residuals)

    def quantile(self, level: float) -> float:
        """Φ⁻¹(level)."""
        return float(torch.special.ndtri(torch.tensor(level, dtype=torch.float64)))

    def sample_like(self, values: Tensor) -> Tensor:
        """Standard Normal numbers."""
        return torch.randn_like(values)

    @property
    def std(self) -> float:
        """1."""
        return 1.0


@dataclass(frozen=True)
class Laplace(Residual):
    """The density ½ exp(−|z|): sharp at its median 0, with longer tails than the Normal."""

    def log_density(self, residuals: Tensor) -> Tensor:
        """−|z| − log 2."""
        return -residuals.abs() - math.log(2)

    def distribution_function(self, residuals: Tensor) -> Tensor:
        """½ exp(−|z|) below zero, and 1 less that above."""
        tail = 0.5 * (-residuals.abs()).exp()
        return torch.where(residuals < 0, tail, 1 - tail)

    def quantile(self, level: float) -> float:
        """Log 2p below the median, −log 2(1 − p) above."""
        return math.log(2 * level) if level < 0.5 else -math.log(2 * (1 - level))

    def sample_like(self, values: Tensor) -> Tensor:
        """The difference of two exponential numbers."""
        return torch.empty_like(values).exponential_() - torch.empty_like(values).exponential_()

    @property
    def std(self) -> float:
        """√2."""
        return math.sqrt(2)


@dataclass(frozen=True, eq=False)
class StudentT(Residual):
    """Student's t, whose tails fall as a power of z: far residuals are no surprise.

    Args:
        df: Degrees of freedom, a tensor with a single number.
    """

    df: Tensor

    def log_density(self, residuals: Tensor) -> Tensor:
        """log Γ((ν+1)/2) − log Γ(ν/2) − ½ log νπ − (ν+1)/2 · log(1 + z²/ν)."""
        df = self.df.to(residuals)
        constant = ((df + 1) / 2).lgamma() - (df / 2).lgamma() - 0.5 * (math.pi * df).log()
        return constant - (df + 1) / 2 * torch.log1p(residuals.square() / df)

    def distribution_function(self, residuals: Tensor) -> Tensor:
        """SciPy's, since torch has none."""
        # Imported here: SciPy's special functions take a while to import, and few need them.
        from scipy.special import stdtr

        found = stdtr(float(self.df.detach()), residuals.detach().cpu().numpy())
        return torch.as_tensor(found, dtype=residuals.dtype, device=residuals.device)

    def quantile(self, level: float) -> float:
        """SciPy's, since torch has none."""
        from scipy.special import stdtrit

        return float(stdtrit(float(self.df.detach()), level))

    def sample_like(self, values: Tensor) -> Tensor:
        """A Normal number over the root of a Gamma number of mean 1."""
        df = self.df.detach().to(values)
        gamma = torch.distributions.Gamma(df / 2, df / 2, validate_args=False)
        return torch.randn_like(values) / gamma.sample(values.shape).sqrt()

    @property
    def std(self) -> float:
        """√(ν / (ν − 2)) above two degrees of freedom, else infinite."""
        df = float(self.df.detach())
        return math.sqrt(df / (df - 2)) if df > 2 else math.inf


@dataclass(frozen=True)
class AsymmetricLaplace:
    """The density τ(1 − τ) exp(−ρ(z)) with the pinball loss ρ(z) = max(τz, (τ − 1)z).

    Its τ-quantile is 0, and its most probable loc for given data is their τ-quantile. It is no
    ``Residual``, since it stands for a loss and does not describe how observations are distributed.

    Args:
        level: τ, between 0 and 1.
    """

    level: float

    def log_density(self, residuals: Tensor) -> Tensor:
        """Log τ(1 − τ) − ρ(z)."""
        pinball = torch.maximum(self.level * residuals, (self.level - 1) * residuals)
        return math.log(self.level * (1 - self.level)) - pinball
