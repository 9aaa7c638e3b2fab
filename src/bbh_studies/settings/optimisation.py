"""How posteriors are fitted: the settings that every method has."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, LRScheduler

import bbh
from bbh.annealing import Schedule
from bbh.generators.factored.rmsprop import make_tensorflow_rmsprop
from bbh_studies.settings import legacy
from bbh_studies.settings.words import ConfigError, check_word, choose

_OPTIMIZERS: dict[str, Callable[[bbh.Posterior[Any]], Any]] = {
    "adam": lambda posterior: partial(bbh.training.make_adam, posterior.weights),
    "rmsprop": lambda _: partial(torch.optim.RMSprop, alpha=0.9),
    "rmsprop_tf": lambda posterior: partial(make_tensorflow_rmsprop, posterior.weights),
}
# Numbers stored per parameter: its value, its gradient and the optimiser's state.
_COPIES = {"adam": 4, "rmsprop": 3, "rmsprop_tf": 3}
_BYTES = 4


@dataclass(frozen=True)
class Optimisation:
    """How a posterior is fitted.

    Attributes:
        epochs: Passes over the training data.
        batch_size: Examples per step; the toy problem always takes all of its data.
        optimizer: adam, rmsprop, or rmsprop_tf, which is RMSProp as TensorFlow 1 has it.
        learning_rate: The optimiser's step size at the start.
        cosine_decay: Let the learning rate fall to zero along half a cosine.
        average_epochs: End with the mean of the parameters over this many last epochs; 0 ends
            with the last parameters.
        anneal_start: Epoch at which β leaves 0.
        anneal_end: Epoch at which β reaches 1; 0 for β = 1 throughout.
        falling_beta: Let β fall to 0 instead, as in the authors' toy notebook.
        temperature: Constant factor on the complexity.
        gradient_clip: Largest norm of the gradient; 0 for no limit.
        precision: 32-true, or bf16-mixed for matrix products and convolutions in half the bits.
        half_moments: Keep Adam's moments of a generator's large matrices in bfloat16: a checkpoint
            of a wide generator is a third smaller, and so is the memory of training.
    """

    epochs: int = 100
    batch_size: int = 100
    optimizer: str = "adam"
    learning_rate: float = 1e-3
    cosine_decay: bool = False
    average_epochs: int = 0
    anneal_start: float = 0.0
    anneal_end: float = 0.0
    falling_beta: bool = False
    temperature: float = 1.0
    gradient_clip: float = 0.0
    precision: str = "32-true"
    half_moments: bool = False

    def check(self) -> None:
        """Raises if training with these settings is impossible."""
        check_word("optimizer", self.optimizer, _OPTIMIZERS)
        # A loss scaler, which 16-mixed would need, rules out recording a training step.
        check_word("precision", self.precision, ("32-true", "bf16-mixed"))
        if self.half_moments and self.optimizer != "adam":
            raise ConfigError(f"half_moments: {self.optimizer} has no moments in half precision.")
        if self.anneal_end > self.epochs:
            raise ConfigError(
                f"annealing would end at epoch {self.anneal_end:g} and training ends at "
                f"{self.epochs}: use --epochs, which shortens both, or --set anneal_end as well."
            )

    def with_epochs(self, epochs: int) -> "Optimisation":
        """Shorter or longer training with annealing in proportion, so that it still ends in time.

        >>> short = Optimisation(epochs=100, anneal_start=5, anneal_end=20).with_epochs(10)
        >>> short.epochs, short.anneal_start, short.anneal_end
        (10, 0.5, 2.0)
        """
        factor = epochs / self.epochs
        return replace(
            self,
            epochs=epochs,
            anneal_start=self.anneal_start * factor,
            anneal_end=self.anneal_end * factor,
        )

    def make_optimizer(
        self, posterior: bbh.Posterior[Any]
    ) -> Callable[[Iterable[nn.Parameter]], Optimizer]:
        """Returns a function that makes the optimiser; its ε is that of the paper's code.

        The loss of a mixture is a mean over its members. With ε divided by their number as well,
        each is trained exactly as it would be alone.
        """
        chosen = choose("optimizer", self.optimizer, _OPTIMIZERS)(posterior)
        if self.half_moments:
            chosen = partial(chosen, moments=torch.bfloat16)
        return partial(chosen, lr=self.learning_rate, eps=1e-5 / posterior.weights.turns)

    def make_scheduler(self) -> Callable[[Optimizer], LRScheduler] | None:
        """Returns what makes the schedule, with a step per epoch; None for a constant rate."""
        return partial(CosineAnnealingLR, T_max=self.epochs) if self.cosine_decay else None

    def make_beta(self, num_data: int, steps_per_epoch: int) -> float | Schedule:
        """The weight of the complexity, constant or annealed."""
        if self.falling_beta:
            # The objective here divides the KL by N, which the authors' does not: undo it.
            return lambda epoch: num_data * legacy.falling_beta(epoch * steps_per_epoch)
        if self.anneal_end == 0:
            return 1.0
        return bbh.Linear(self.anneal_start, self.anneal_end)

    def memory_bytes(self, parameters: int) -> int:
        """Bytes that parameters, their gradients and the optimiser's state take."""
        # Two moments, each in half the bytes, are one number less.
        return parameters * _BYTES * (_COPIES[self.optimizer] - self.half_moments)
