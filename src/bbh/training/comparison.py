"""How a trained posterior compares with a constant prediction and with the network it began as."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Comparison:
    """Metrics of a trained posterior, and of what it should beat, on the same examples.

    Attributes:
        data: ``"validation"`` or ``"training"``: where the examples come from.
        num_examples: The number of examples.
        posterior: Metrics of the posterior, with ``error`` and ``nll``.
        constant: Metrics of the best prediction that ignores inputs, fitted to training targets;
            None if the likelihood has none.
        start: Metrics of the network that the posterior was made from, with its weights at that
            time and the likelihood as it is after training; None if they are not known.
        lost_to_constant: Whether the posterior's NLL is not below the constant prediction's.
        lost_to_start: Whether the posterior's NLL or error (on training data both) are worse than
            the starting network's, by more than three standard errors of the difference over
            examples.
    """

    data: str
    num_examples: int
    posterior: dict[str, float]
    constant: dict[str, float] | None
    start: dict[str, float] | None
    lost_to_constant: bool
    lost_to_start: bool

    def __str__(self) -> str:
        named = {
            "constant prediction": self.constant,
            "starting network": self.start,
        }
        others = [f"{name} {_brief(one)}" for name, one in named.items() if one is not None]
        return " · ".join(
            [f"{self.data}, {self.num_examples:,} examples: {_brief(self.posterior)}", *others]
        )

    def warning(self) -> str | None:
        """What to do about a posterior that lost; None for one that did not."""
        lost: list[str] = []
        if self.lost_to_constant and self.constant is not None:
            lost.append(f"a constant prediction that ignores inputs ({_brief(self.constant)})")
        if self.lost_to_start and self.start is not None:
            lost.append(f"the network it started from ({_brief(self.start)})")
        if not lost:
            return None
        return (
            f"on {self.num_examples:,} {self.data} examples the posterior "
            f"({_brief(self.posterior)}) lost to {' and to '.join(lost)}. Common remedies: train "
            "longer, a prior of another (often smaller) scale, temperature=0.1, and standardised "
            "inputs and targets."
        )


def _brief(metrics: dict[str, float]) -> str:
    return f"nll {metrics['nll']:.4g}, error {metrics['error']:.4g}"
