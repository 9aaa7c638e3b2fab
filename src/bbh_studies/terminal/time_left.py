"""How long a study will still take, predicted from its finished runs."""

from collections.abc import Sequence


class TimeLeft:
    """Predicts how long the remaining runs will take.

    A run is expected to take its steps times the seconds per step of finished runs of the same
    variant, because methods differ by factors of ten. For a variant without a finished run the
    mean over all known variants is used.

    Args:
        work: Variant and steps of every run, in their order.
    """

    def __init__(self, work: Sequence[tuple[str, int]]):
        self._work = list(work)
        self._current = 0
        self._seconds: dict[str, float] = {}
        self._steps: dict[str, int] = {}

    def finished(self, seconds: float = 0.0, steps: int = 0) -> None:
        """Call this when a run is over; without steps (read back or failed) it predicts nothing."""
        variant, _ = self._work[self._current]
        self._current += 1
        if steps:
            self._seconds[variant] = self._seconds.get(variant, 0.0) + seconds
            self._steps[variant] = self._steps.get(variant, 0) + steps

    def seconds(self, done: int, rate: float | None) -> float | None:
        """Seconds until all runs are over; None where nothing has been measured yet.

        Args:
            done: Steps that the current run has made.
            rate: The current run's own seconds per step, if measured.
        """
        rates = {name: self._seconds[name] / self._steps[name] for name in self._steps}
        remaining = self._work[self._current :]
        if remaining and rate is not None:
            # Its rate also predicts later runs of its variant, if none of these has finished.
            rates = {remaining[0][0]: rate} | rates
        if not remaining:
            return 0.0
        if not rates:
            return None
        typical = sum(rates.values()) / len(rates)
        variant, steps = remaining[0]
        now = rates.get(variant, typical) if rate is None else rate
        others = sum(steps * rates.get(variant, typical) for variant, steps in remaining[1:])
        return max(0, steps - done) * now + others


def duration(seconds: float | None) -> str:
    """A time span in the units that people would use.

    >>> duration(12.4), duration(200), duration(9000), duration(None)
    ('12 s', '3 min 20 s', '2 h 30 min', 'unknown time')
    """
    if seconds is None:
        return "unknown time"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest:02} s"
    return f"{minutes // 60} h {minutes % 60:02} min"
