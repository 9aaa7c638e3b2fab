"""Attacks by one step along the gradient: FGSM, and the variant that the paper used."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from bbh.attacks.base import Attack, Bounds, Perturbed
from bbh.attacks.loss import AveragedLoss


@dataclass(frozen=True, kw_only=True)
class FGSM(Attack):
    """Fast gradient sign method: x' = clip(x + ε · steepest(∇ₓL)), Goodfellow et al. (2015).

    L is the loss of the averaged prediction, see ``Attack``; steepest(g) is sign(g) in L∞ and
    g / ‖g‖ in L2.
    """

    def _perturb(
        self, loss: AveragedLoss, clean: Tensor, epsilons: Sequence[float]
    ) -> list[Perturbed]:
        at_clean, ascent = loss.ascent(clean)
        step = self.norm.steepest(ascent)
        moved = [self._clip(clean + epsilon * step) for epsilon in epsilons]
        return [Perturbed(one, loss.value(one).loss, at_clean.loss) for one in moved]


@dataclass(frozen=True, kw_only=True)
class LegacyFGSM(Attack):
    """The paper's attack: it perturbs the image for each draw separately and takes the average.

        x' = x + ε · 1/S Σ_s steepest(∇ₓ −log p(y | x, w_s)), not clipped

    Where the draws disagree, their steps cancel. The perturbation is at most ε and usually smaller,
    so the more its draws disagree, the more robust a posterior appears. ``Attacked.size`` gives the
    true size. Use this attack only to reproduce the published curves, and report ``FGSM``.
    """

    bounds: Bounds | None = None

    def _perturb(
        self, loss: AveragedLoss, clean: Tensor, epsilons: Sequence[float]
    ) -> list[Perturbed]:
        clean_loss = loss.value(clean).loss
        step = loss.mean_over_draws(clean, self.norm.steepest)
        moved = [self._clip(clean + epsilon * step) for epsilon in epsilons]
        return [Perturbed(one, loss.value(one).loss, clean_loss) for one in moved]
