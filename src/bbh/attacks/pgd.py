"""Many small steps along the gradient."""

from dataclasses import dataclass

import torch
from torch import Tensor

from bbh.attacks.base import Attack, Perturbed
from bbh.attacks.loss import AveragedLoss


@dataclass(frozen=True, kw_only=True)
class PGD(Attack):
    """Projected gradient ascent on the averaged predictive's loss L, Madry et al. (2018).

        x ← clip(project(x + α · steepest(∇ₓL)))

    By default one set of draws serves all steps: L is then one function, and the result is, for
    each example, the point with the highest loss among all iterates, the clean input and the point
    of ``FGSM``. So with the same draws PGD is never weaker than FGSM.

    The worst point for a few draws need not be bad for others. Where many draws cost too much,
    ``fresh_draws`` takes new ones in every step (expectation over transformations, Athalye et al.,
    2018); every step then raises another function, no best point can be told, and the result is the
    last one.

    Args:
        steps: How many.
        relative_step_size: α as a share of epsilon; None takes 2.5 / steps, with which the whole
            ball can be crossed.
        random_start: Begin at a random point of the ball, not at the clean input.
        fresh_draws: New weight draws in every step.
    """

    steps: int = 20
    relative_step_size: float | None = None
    random_start: bool = False
    fresh_draws: bool = False

    def __post_init__(self):
        super().__post_init__()
        if self.steps < 1:
            raise ValueError(f"steps={self.steps}: take at least one.")
        if self.relative_step_size is not None and not self.relative_step_size > 0:
            raise ValueError(
                f"relative_step_size={self.relative_step_size}: a positive share of epsilon, or "
                "None."
            )

    @property
    def _renews_draws(self) -> bool:
        return self.fresh_draws

    def _perturb(self, loss: AveragedLoss, clean: Tensor, epsilon: float) -> Perturbed:
        current = clean
        if self.random_start:
            current = self._clip(clean + epsilon * self.norm.random(clean))
        if self.fresh_draws:
            for _ in range(self.steps):
                _, gradient = loss.renewed().gradient(current)
                current = self._step(current, gradient, clean, epsilon)
            return Perturbed(current, loss.value(current), loss.value(clean))
        clean_loss, gradient = loss.gradient(clean)
        best = _Best(clean, clean_loss)
        one_step = self._clip(clean + epsilon * self.norm.steepest(gradient))
        best.offer(one_step, loss.value(one_step))
        for _ in range(self.steps):
            at_current, gradient = loss.gradient(current)
            best.offer(current, at_current)
            current = self._step(current, gradient, clean, epsilon)
        best.offer(current, loss.value(current))
        return Perturbed(best.inputs, best.loss, clean_loss)

    def _step(self, current: Tensor, gradient: Tensor, clean: Tensor, epsilon: float) -> Tensor:
        step_size = epsilon * (self.relative_step_size or 2.5 / self.steps)
        moved = current + step_size * self.norm.steepest(gradient)
        return self._clip(clean + self.norm.project(moved - clean, epsilon))


class _Best:
    """The inputs with the highest loss so far, example by example."""

    def __init__(self, inputs: Tensor, loss: Tensor):
        self.inputs = inputs
        self.loss = loss

    def offer(self, inputs: Tensor, loss: Tensor) -> None:
        """Takes the place where it is better."""
        better = loss > self.loss
        self.loss = torch.where(better, loss, self.loss)
        shaped = better.view(-1, *[1] * (inputs.dim() - 1))
        self.inputs = torch.where(shaped, inputs, self.inputs)
