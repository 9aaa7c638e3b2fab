"""Checks recorded training steps on the device, where their inputs and results stay."""

from collections.abc import Generator
from contextlib import contextmanager
from math import isfinite

import torch

from bbh.training.verdicts import CHECKED, STATISTICS, UPDATE, Before, Terms, Verdict


class _DeviceNumber:
    """A number that recorded steps read from the device; the host writes it when it changes."""

    def __init__(self, device: torch.device):
        self.tensor = torch.zeros((), device=device)
        self._value = 0.0

    def set(self, value: float) -> None:
        if value != self._value:
            self.tensor.fill_(value)
            self._value = value


class DeviceVerdict(Verdict):
    """Checks a recorded step on the device, and holds the step's inputs and results there.

    A step with a value that is not finite changes nothing, and neither does any step after it,
    until the host checks.

    Attributes:
        beta: Weight of the complexity.
        rates: Learning rates of the optimizer's groups.
        skip: One if the update must change nothing, else zero. Fused optimizers read this as
            ``found_inf``.
        failed: Whether a step had a value that is not finite; once true it stays true.
        taken: The number of successful steps since the host last checked.
    """

    names = ("nll", "complexity", "auxiliary", "total", "gradient_norm")

    def __init__(self, num_groups: int, device: torch.device):
        self.beta = _DeviceNumber(device)
        self.rates = [_DeviceNumber(device) for _ in range(num_groups)]
        self.skip = torch.zeros((), device=device)
        self.failed = torch.zeros((), dtype=torch.bool, device=device)
        self.taken = torch.zeros((), dtype=torch.int64, device=device)
        self._last = torch.zeros(len(self.names), device=device)
        self._checked = torch.zeros(len(CHECKED), device=device)
        self._sums = torch.zeros(len(self.names), dtype=torch.float64, device=device)
        self._summed = torch.zeros((), dtype=torch.int64, device=device)

    def judge(self, terms: Terms) -> None:
        """Records whether all terms are finite, for the following update and all later ones."""
        good = torch.stack(list(terms.values())).isfinite().all()
        for place, name in enumerate(CHECKED):
            if name in terms:
                # Like the last terms, it stops changing with the first failure, which it may
                # explain.
                value = self._checked[place]
                value.copy_(torch.where(self.failed, value, terms[name]))
        self.failed.logical_or_(good.logical_not())
        self.skip.copy_(self.failed)

    @contextmanager
    def undoing(self, before: Before) -> Generator[Before]:
        """Puts the tensors back if the step failed.

        Random numbers are put back by the host.
        """
        yield before
        with torch.no_grad():
            for value, copied in before.tensors:
                value.copy_(torch.where(self.failed, copied, value))

    def add(self, terms: Terms) -> None:
        """Adds a step's terms to the sums, and keeps them as the last terms.

        After a failure the terms of the first failed step are kept, for the error message.
        """
        numbers = torch.stack([terms[name] for name in self.names])
        # The last terms stop changing once they are not finite: they explain the failure.
        first = self._last.isfinite().all()
        self._last.copy_(torch.where(first, numbers, self._last))
        good = self.failed.logical_not()
        self._sums.add_(torch.where(good, numbers, torch.zeros_like(numbers)))
        self._summed.add_(good)
        self.taken.add_(good)

    def read(self) -> tuple[dict[str, float], bool, int]:
        """The last terms, whether a step failed, and the number of successful steps.

        What is checked but no term is among the terms only if it is not finite. All are read in a
        single transfer, since each transfer makes the host wait.
        """
        single = [value.view(1).double() for value in (self.failed, self.taken)]
        parts = [self._last.double(), self._checked.double(), *single]
        *values, failed, taken = torch.cat(parts).tolist()
        # In the order in which eager steps name them: the gradient is a consequence of statistics,
        # and the update one of the gradient.
        *first, norm = self.names
        order = (*first, STATISTICS, norm, UPDATE)
        found = dict(zip((*self.names, *CHECKED), values, strict=True))
        terms = {
            name: found[name] for name in order if name in self.names or not isfinite(found[name])
        }
        return terms, bool(failed), int(taken)

    def take_sums(self) -> tuple[dict[str, float], int]:
        """Sums of terms and the number of steps since the last call; resets both to zero."""
        *values, number = torch.cat([self._sums, self._summed.view(1).double()]).tolist()
        self._sums.zero_()
        self._summed.zero_()
        return dict(zip(self.names, values, strict=True)), int(number)
