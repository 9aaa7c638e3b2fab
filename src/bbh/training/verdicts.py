"""Decides whether a training step may be taken, and puts back what a failed one has changed."""

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable
from contextlib import AbstractContextManager, contextmanager
from math import isfinite
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from bbh.training.history import History

# The terms of the objective by name; the last one is minimised.
Terms = dict[str, Tensor]
# What is checked like a term, but is none: the largest running statistic of batch norm, and a bound
# on the size of the update.
STATISTICS, UPDATE = "batch_norm_statistics", "update"
CHECKED = (STATISTICS, UPDATE)


class DivergedError(FloatingPointError):
    """Training produced a value that is not finite.

    The state is that from before the step that failed: the weights, the running statistics of the
    network, helper networks (a critic), the optimizer, and PyTorch's random numbers.

    Attributes:
        term: Name of the value: nll, complexity, auxiliary, total, gradient_norm,
            batch_norm_statistics for the running means and variances of normalisation layers,
            update if the learning rate would make weights overflow, or parameter_norm if an
            optimizer did so nevertheless; only then the state from before is lost.
        history: The records of the epochs before.
    """

    def __init__(self, term: str, step: int, value: float):
        kept = "lost" if term == "parameter_norm" else "those from before that step"
        super().__init__(
            f"training stopped at step {step}: the {term} is {value}. The weights are {kept}. "
            "Common remedies: a lower learning rate, gradient_clip=1.0, annealing the complexity "
            "with beta=bbh.Linear(5, 20), and a look at the inputs for NaN or very large values."
        )
        self.term = term
        self.history = History()


class Before:
    """What a step changes before it is known whether the step may be taken, as it was before.

    Args:
        optimizer: The optimizer, whose state for helper networks changes.
        device: Where random numbers are drawn, besides the CPU.

    Attributes:
        tensors: Pairs of a tensor and a copy from before.
    """

    def __init__(self, optimizer: Optimizer, device: torch.device):
        self.tensors: list[tuple[Tensor, Tensor]] = []
        self.device = device
        self._optimizer = optimizer
        self._states: dict[Tensor, dict[str, Any]] = {}

    def keep(self, tensors: Iterable[Tensor]) -> None:
        """Remembers these tensors."""
        self.tensors += [(tensor, tensor.detach().clone()) for tensor in tensors]

    def keep_trained(self, parameters: Iterable[Tensor]) -> None:
        """Remembers the parameters that have a gradient, and the optimizer's state of them."""
        for parameter in parameters:
            if parameter.grad is not None and parameter not in self._states:
                state = dict(self._optimizer.state.get(parameter, {}))
                self._states[parameter] = state
                self.keep([parameter, *(one for one in state.values() if isinstance(one, Tensor))])

    def restore(self) -> None:
        """Puts everything back, from the host."""
        with torch.no_grad():
            for tensor, before in self.tensors:
                tensor.copy_(before)
        for parameter, state in self._states.items():
            # The same tensors as before, whose values were put back; numbers; and nothing else.
            self._optimizer.state[parameter] = state
            if not state:
                del self._optimizer.state[parameter]


class Verdict(ABC):
    """Checks that the terms of a step are finite before they change any parameter."""

    @abstractmethod
    def judge(self, terms: Terms) -> None:
        """Checks the terms of an update, and prevents the update if one is not finite."""

    @abstractmethod
    def undoing(self, before: Before) -> AbstractContextManager[Before]:
        """Puts back what was remembered in the block, if the step in the block fails.

        Batch norm updates its running statistics in the forward pass, and helper networks take
        steps of their own, before all terms are checked.
        """


class HostVerdict(Verdict):
    """Reads the terms from the device, and raises ``DivergedError`` if one is not finite.

    Args:
        step: Number of the step, for the error message.
        may_overflow: Whether an infinite gradient is no error. In half precision a loss scaler
            tries larger scales until gradients overflow, and skips those updates itself.

    Attributes:
        numbers: The terms of the last check, without what is no term.
    """

    def __init__(self, step: int, *, may_overflow: bool = False):
        self.numbers: dict[str, float] = {}
        self._step = step
        self._may_overflow = may_overflow

    def judge(self, terms: Terms) -> None:
        """Raises for the first term that is not finite."""
        # All terms are read at once, since every single read makes the host wait for the device.
        values = torch.stack(list(terms.values())).tolist()
        numbers = dict(zip(terms, values, strict=True))
        if self._may_overflow and not isfinite(numbers["gradient_norm"]):
            numbers |= {"gradient_norm": 0.0, UPDATE: 0.0}
        for name, value in numbers.items():
            if not isfinite(value):
                raise DivergedError(name, self._step, value)
        self.numbers = {name: value for name, value in numbers.items() if name not in CHECKED}

    @contextmanager
    def undoing(self, before: Before) -> Generator[Before]:
        """Puts back tensors, the optimizer's state and random numbers after a ``DivergedError``."""
        states = random_states(before.device)
        try:
            yield before
        except DivergedError:
            before.restore()
            restore_random_states(before.device, states)
            raise


def random_states(device: torch.device) -> list[Tensor]:
    """States of the random generators from which a step draws."""
    return [generator.get_state() for generator in _generators(device)]


def restore_random_states(device: torch.device, states: list[Tensor]) -> None:
    """Puts the generators back to where ``random_states`` found them."""
    for generator, state in zip(_generators(device), states, strict=True):
        generator.set_state(state)


def _generators(device: torch.device) -> list[torch.Generator]:
    found = [torch.default_generator]
    if device.type == "cuda":
        with torch.cuda.device(device):
            found.append(torch.cuda.default_generators[torch.cuda.current_device()])
    return found
