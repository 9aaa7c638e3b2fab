"""Attacks by many small steps along the gradient."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bbh import checks
from bbh.attacks.base import Attack, Perturbed
from bbh.attacks.loss import AveragedLoss, Height


@dataclass(frozen=True, kw_only=True)
class PGD(Attack):
    """Projected gradient ascent on the loss L of the averaged prediction, Madry et al. (2018).

        x ← clip(project(x + α · steepest(∇ₓL)))

    By default all steps use one set of draws, so L is one function. The result is, for each
    example, the best point among all iterates, the clean input and the point of ``FGSM``: the one
    where another class is most probable beside the target (the largest difference of their log
    probabilities; for targets that are not classes, the highest loss). With the same draws PGD is
    therefore never weaker than FGSM: what FGSM makes the posterior mistake, PGD does too. The
    highest loss would not do, since it may belong to a point where the target has lost to several
    classes a little and is still ahead of each.

    The worst point for a few draws need not be bad for other draws. Where many draws take too long,
    ``fresh_draws`` uses new ones in every step (expectation over transformations, Athalye et al.,
    2018). Every step then increases a different function, so the losses of points cannot be
    compared, and the result is the last point.

    Args:
        steps: The number of steps.
        relative_step_size: α as a share of epsilon. None takes 2.5 / steps, so that all steps
            together can cross the whole ball.
        random_start: Begin at a random point of the ball, not at the clean input.
        fresh_draws: Use new weight draws in every step.
    """

    steps: int = 20
    relative_step_size: float | None = None
    random_start: bool = False
    fresh_draws: bool = False

    def __post_init__(self):
        super().__post_init__()
        checks.whole("steps", self.steps, 1, "take at least one")
        if self.relative_step_size is not None and not self.relative_step_size > 0:
            raise ValueError(
                f"relative_step_size={self.relative_step_size}: a positive share of epsilon, or "
                "None."
            )

    @property
    def _renews_draws(self) -> bool:
        return self.fresh_draws

    def _perturb(
        self, loss: AveragedLoss, clean: Tensor, epsilons: Sequence[float]
    ) -> list[Perturbed]:
        if self.fresh_draws:
            clean_loss = loss.value(clean).loss
            last = [self._last_point(loss, clean, epsilon) for epsilon in epsilons]
            return [Perturbed(one, loss.value(one).loss, clean_loss) for one in last]
        at_clean = loss.ascent(clean)
        return [self._best_point(loss, clean, at_clean, epsilon) for epsilon in epsilons]

    def _last_point(self, loss: AveragedLoss, clean: Tensor, epsilon: float) -> Tensor:
        current = self._start(clean, epsilon)
        for _ in range(self.steps):
            _, ascent = loss.renewed().ascent(current)
            current = self._step(current, ascent, clean, epsilon)
        return current

    def _best_point(
        self, loss: AveragedLoss, clean: Tensor, at_clean: tuple[Height, Tensor], epsilon: float
    ) -> Perturbed:
        clean_height, clean_ascent = at_clean
        best = _Best(clean, clean_height)
        if epsilon:  # a ball of size zero contains only the clean input
            one_step = self._clip(clean + epsilon * self.norm.steepest(clean_ascent))
            best.offer(one_step, loss.value(one_step))
            current = self._start(clean, epsilon)
            for number in range(self.steps):
                known = number == 0 and not self.random_start
                height, ascent = at_clean if known else loss.ascent(current)
                best.offer(current, height)
                current = self._step(current, ascent, clean, epsilon)
            best.offer(current, loss.value(current))
        return Perturbed(best.inputs, best.height.loss, clean_height.loss)

    def _start(self, clean: Tensor, epsilon: float) -> Tensor:
        if not self.random_start:
            return clean
        return self._clip(clean + epsilon * self.norm.random(clean))

    def _step(self, current: Tensor, ascent: Tensor, clean: Tensor, epsilon: float) -> Tensor:
        step_size = epsilon * (self.relative_step_size or 2.5 / self.steps)
        moved = current + step_size * self.norm.steepest(ascent)
        return self._clip(clean + self.norm.project(moved - clean, epsilon))


class _Best:
    """For each example, the input with the largest margin so far; of equal ones the first."""

    def __init__(self, inputs: Tensor, height: Height):
        self.inputs = inputs
        self.height = height

    def offer(self, inputs: Tensor, height: Height) -> None:
        """Replaces the best inputs of those examples whose margin is larger now."""
        better = height.margin > self.height.margin
        chosen = [torch.where(better, *pair) for pair in zip(height, self.height, strict=True)]
        self.height = Height(*chosen)
        shaped = better.view(-1, *[1] * (inputs.dim() - 1))
        self.inputs = torch.where(shaped, inputs, self.inputs)
