"""Mean, spread and kurtosis of every weight, updated with each piece of draws and keeping none."""

from jaxtyping import Float
from torch import Tensor


class Moments:
    """Sums of powers of deviations from the mean, Σ(w − w̄)^k for k = 2, 3, 4, for D weights.

    The sums of two sets of draws are combined exactly, Pébay (2008), "Formulas for robust, one-pass
    parallel computation of covariances and arbitrary-order statistical moments". All is in float64,
    so that the result does not depend on how draws were divided into pieces.
    """

    def __init__(self, draws: Float[Tensor, "S D"]):
        draws = draws.double()
        self.number = len(draws)
        self.mean = draws.mean(0)
        deviation = draws - self.mean
        square = deviation.square()
        self.second = square.sum(0)
        self.third = (square * deviation).sum(0)
        self.fourth = square.square_().sum(0)

    def add(self, draws: Float[Tensor, "S D"]) -> None:
        """Adds further draws."""
        other = Moments(draws)
        a, b = self.number, other.number
        n = a + b
        apart = other.mean - self.mean
        # The highest power comes first, since each update needs the old values of lower powers.
        self.fourth += (
            other.fourth
            + apart**4 * (a * b * (a * a - a * b + b * b) / n**3)
            + 6 * apart**2 * (a * a * other.second + b * b * self.second) / n**2
            + 4 * apart * (a * other.third - b * self.third) / n
        )
        self.third += (
            other.third
            + apart**3 * (a * b * (a - b) / n**2)
            + 3 * apart * (a * other.second - b * self.second) / n
        )
        self.second += other.second + apart**2 * (a * b / n)
        self.mean += apart * (b / n)
        self.number = n

    @property
    def std(self) -> Float[Tensor, " D"]:
        """Standard deviation, with S − 1 in the denominator."""
        return (self.second / (self.number - 1)).sqrt()

    @property
    def excess_kurtosis(self) -> Float[Tensor, " D"]:
        """Fourth moment over squared variance, minus 3; NaN for weights that do not vary."""
        return self.number * self.fourth / self.second.square() - 3

    @property
    def variance_squared(self) -> Float[Tensor, " D"]:
        """Unbiased estimate of σ⁴ = E (w₁ − w₂)² (w₃ − w₄)² / 4; it needs at least four draws."""
        n = self.number
        known = (n * n - 3 * n + 3) * self.second.square() - n * (n - 1) * self.fourth
        return known / (n * (n - 1) * (n - 2) * (n - 3))
