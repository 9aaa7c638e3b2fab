"""Contenders side by side on one problem: steps, predictions, parameters, memory."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from bbh_studies.bench.contenders import Contender, check_prediction
from bbh_studies.bench.problems import Problem
from bbh_studies.bench.settings import Settings
from bbh_studies.bench.timing import Task, Timing, clock, interleaved, peak_memory, reason

# Turns of a step that are not timed: on a GPU a step is recorded after three calls.
_WARM_UP = 2
Tell = Callable[[str], object]


@dataclass
class Row:
    """The measurements of one contender.

    Attributes:
        contender: The contender.
        step: Time of a training step.
        predict: Time of a prediction.
        batch_size: Inputs per call of the prediction; None where the library chooses.
        training_bytes: Most bytes in tensors of the first step, beyond the parameters: gradients,
            moments, activations.
        predict_bytes: Most bytes of a prediction in the first of its batch sizes.
        failures: Reasons of failures, by where they happened: ``step`` or ``predict``.
    """

    contender: Contender
    step: Timing | None = None
    predict: Timing | None = None
    batch_size: int | None = None
    training_bytes: int | None = None
    predict_bytes: int | None = None
    failures: dict[str, str] = field(default_factory=dict[str, str])

    def metrics(self) -> dict[str, float]:
        """The measurements as metrics of a record."""
        found: dict[str, float] = {"parameters": self.contender.parameters}
        if self.step is not None:
            found |= self.step.milliseconds("step")
        if self.predict is not None:
            found |= self.predict.milliseconds("predict")
        for name in ("training_bytes", "predict_bytes"):
            if (value := getattr(self, name)) is not None:
                found[name] = value
        return found


def compare(
    problem: Problem, contenders: Sequence[Contender], settings: Settings, tell: Tell
) -> list[Row]:
    """Times all contenders in turn; one that fails keeps its row, with the reason.

    Args:
        problem: The problem that they were built for.
        contenders: All contenders, built for this problem.
        settings: Settings of the benchmark.
        tell: Called with a text that says what is being done.
    """
    rows = {one.name: Row(one) for one in contenders}
    for row in rows.values():
        tell(f"{problem.name}: {row.contender.name} gets ready")
        _prepare(row, problem)
    steps = [
        Task(name, row.contender.step, settings.repeats)
        for name, row in rows.items()
        if "step" not in row.failures
    ]
    predictions = [
        Task(name, lambda row=row: row.contender.predict(row.batch_size))
        for name, row in rows.items()
        if "predict" not in row.failures
    ]
    timed = interleaved(
        steps,
        rounds=settings.rounds,
        warm_up=_WARM_UP,
        device=problem.device,
        seed=settings.seed,
        on_turn=lambda name: tell(f"{problem.name}: training steps, {name}"),
    )
    for name, row in rows.items():
        row.step = timed.timings.get(name)
        row.failures |= {"step": timed.failures[name]} if name in timed.failures else {}
    timed = interleaved(
        predictions,
        rounds=settings.predict_rounds,
        warm_up=0,  # choosing a batch size was the warm-up
        device=problem.device,
        seed=settings.seed,
        on_turn=lambda name: tell(f"{problem.name}: predictions, {name}"),
    )
    for name, row in rows.items():
        row.predict = timed.timings.get(name)
        row.failures |= {"predict": timed.failures[name]} if name in timed.failures else {}
    return list(rows.values())


def _prepare(row: Row, problem: Problem) -> None:
    """Measures memory, finds the best batch size, and notes whether the contender works."""
    contender = row.contender
    row.training_bytes = peak_memory(contender.step, problem.device)
    try:
        contender.step()
    except Exception as error:
        row.failures["step"] = reason(error)
    first, *others = contender.batch_sizes
    made: list[Tensor] = []
    row.predict_bytes = peak_memory(lambda: made.append(contender.predict(first)), problem.device)
    try:
        check_prediction(made[0] if made else contender.predict(first), problem)
        row.batch_size = first
        if others:
            times = {
                size: clock(lambda size=size: contender.predict(size), 1, problem.device)
                for size in contender.batch_sizes
            }
            row.batch_size = min(times, key=lambda size: times[size])
    except Exception as error:
        row.failures["predict"] = reason(error)


def fastest_peer(rows: Sequence[Row], method: str, measure: str) -> Row | None:
    """Another library's contender with the shortest median of ``step`` or ``predict``."""
    peers = [
        row
        for row in rows
        if row.contender.is_peer and row.contender.method == method and getattr(row, measure)
    ]
    return min(peers, key=lambda row: getattr(row, measure).median, default=None)


def ratio(rows: Sequence[Row], name: str, other: Row | None, measure: str) -> float | None:
    """Median of one contender over that of another; None if one of them is missing."""
    own = next((row for row in rows if row.contender.name == name), None)
    above = None if own is None else getattr(own, measure)
    below = None if other is None else getattr(other, measure)
    return None if above is None or below is None else above.median / below.median


def find(rows: Sequence[Row], name: str) -> Row | None:
    """The row of a contender."""
    return next((row for row in rows if row.contender.name == name), None)
