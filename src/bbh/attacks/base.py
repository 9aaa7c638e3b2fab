"""The base of all attacks: averaged predictions, the range of valid inputs, the memory limit."""

import math
from abc import ABC, abstractmethod
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from bbh import checks
from bbh.attacks.loss import AveragedLoss, Preprocess, unweighted
from bbh.attacks.norms import LInf, Norm
from bbh.batches import Inputs
from bbh.memory import peak_bytes, tiling
from bbh.posterior import Posterior
from bbh.prediction.draws import Draws, evaluation_mode
from bbh.prediction.predicting import MEMORY_LIMIT

Bounds = tuple[float, float]


@dataclass(frozen=True)
class Attacked:
    """Inputs before and after an attack.

    Attributes:
        inputs: The inputs after the attack.
        clean_inputs: The inputs before the attack.
        loss: −log of the averaged predictive probability of the targets after the attack, in nats,
            with the weight draws of the attack.
        clean_loss: The same loss before the attack.
        epsilon: The size of the perturbation that was allowed.
    """

    inputs: Float[Tensor, "B *event"] = field(repr=False)
    clean_inputs: Float[Tensor, "B *event"] = field(repr=False)
    loss: Float[Tensor, " B"]
    clean_loss: Float[Tensor, " B"]
    epsilon: float

    def size(self, norm: Norm) -> Float[Tensor, " B"]:
        """True size of the perturbation: clipping and averaging can make it less than epsilon."""
        return norm.size(self.inputs - self.clean_inputs)


class Perturbed(NamedTuple):
    """The result of an attack on one batch."""

    inputs: Tensor
    loss: Tensor
    clean_loss: Tensor


@dataclass(frozen=True, kw_only=True)
class Attack(ABC):
    """Increases the averaged prediction's loss, −log 1/S Σ_s p(y | x, w_s), by a small change of x.

    An attack is called with a posterior, inputs, their targets and the largest size of the
    perturbation. To attack one posterior with inputs made for another (a transfer attack), use

    ``predict(victim, attack(source, images, labels, 0.1).inputs)``

    Args:
        norm: Measures the perturbation.
        bounds: Range of valid inputs, in the units of ``epsilon``; None if there is no range.
        num_samples: The number S of weight draws for the attack. ``robustness`` draws others for
            its predictions, except for a distribution with fewer different draws (MAP, an
            ensemble), where both use each draw once.
        preprocess: A differentiable function from the attacked inputs to the network's inputs, if
            they differ, such as ``lambda images: (images - mean) / std``.
        memory_limit: Bytes that draws and activations may take. At least one draw and one example
            are always processed at once, even if they take more.
    """

    norm: Norm = field(default_factory=LInf)
    bounds: Bounds | None = (0.0, 1.0)
    num_samples: int = 100
    preprocess: Preprocess | None = None
    memory_limit: int = MEMORY_LIMIT

    def __post_init__(self):
        if self.num_samples < 1:
            raise ValueError(f"num_samples={self.num_samples}: draw at least one.")
        checks.number("memory_limit", self.memory_limit, positive=True)
        if self.bounds is not None and not -math.inf < self.bounds[0] < self.bounds[1] < math.inf:
            raise ValueError(
                f"bounds={self.bounds}: give the lowest and the highest valid input, such as "
                "(0.0, 1.0), or None where there is no such range."
            )

    def __call__(
        self,
        posterior: Posterior[Any],
        inputs: Inputs,
        targets: Tensor,
        epsilon: float,
        *,
        samples: Mapping[str, Tensor] | None = None,
    ) -> Attacked:
        """Attacks the inputs. The result is on the device of the inputs.

        Args:
            posterior: The posterior, in evaluation mode during the call and unchanged after it.
            inputs: One floating-point tensor within the bounds.
            targets: The true targets of the inputs, whose probability the attack lowers.
            epsilon: Largest size of the perturbation, in the units of the inputs.
            samples: Weight draws to use instead of new ones.
        """
        (attacked,) = self.sweep(posterior, inputs, targets, [epsilon], samples=samples)
        return attacked

    def sweep(
        self,
        posterior: Posterior[Any],
        inputs: Inputs,
        targets: Tensor,
        epsilons: Sequence[float],
        *,
        samples: Mapping[str, Tensor] | None = None,
    ) -> list[Attacked]:
        """Attacks with several sizes of the perturbation, all with the same draws.

        The gradient at the clean inputs does not depend on the size and is computed once. For
        ``FGSM`` and ``LegacyFGSM`` this is most of the work.

        Args:
            posterior: The posterior, as in a call of the attack.
            inputs: One floating-point tensor within the bounds.
            targets: The true targets of the inputs.
            epsilons: Sizes of the perturbation; there is one result for each, in this order.
            samples: Weight draws to use instead of new ones.
        """
        for epsilon in epsilons:
            _check_epsilon(epsilon)
        clean = self._checked(inputs)
        if len(targets) != len(clean):
            raise ValueError(f"there are {len(clean)} inputs and {len(targets)} targets.")
        if samples is not None and self._renews_draws:
            raise ValueError("samples= fixes the draws: leave it out, or leave out fresh_draws.")
        with evaluation_mode(posterior), torch.no_grad():
            draws = Draws(posterior, self.num_samples, samples, self.memory_limit // 4)
            batches = [
                [_moved(one, clean.device) for one in self._perturb(loss, batch, epsilons)]
                for loss, batch in self._batches(posterior, draws, clean, targets)
            ]
        attacked: list[Attacked] = []
        for epsilon, parts in zip(epsilons, zip(*batches, strict=True), strict=True):
            joined = Perturbed(*(torch.cat(values) for values in zip(*parts, strict=True)))
            attacked.append(
                Attacked(joined.inputs, clean, joined.loss, joined.clean_loss, float(epsilon))
            )
        return attacked

    @property
    def _renews_draws(self) -> bool:
        return False

    @abstractmethod
    def _perturb(
        self, loss: AveragedLoss, clean: Tensor, epsilons: Sequence[float]
    ) -> list[Perturbed]:
        """Attacks one batch with perturbations of all sizes."""

    def _clip(self, inputs: Tensor) -> Tensor:
        return inputs if self.bounds is None else inputs.clamp(*self.bounds)

    def _batches(
        self, posterior: Posterior[Any], draws: Draws, clean: Tensor, targets: Tensor
    ) -> Generator[tuple[AveragedLoss, Tensor]]:
        """Batches, as large as memory allows, with the loss for each."""
        device = posterior.device
        one, its_target = clean[:1].to(device), targets[:1].to(device)
        single = Draws(posterior, 1, draws.first(), self.memory_limit)
        self._check_targets(posterior, single, one, targets)
        trial = AveragedLoss(posterior, single, its_target, 1, self.preprocess)
        per_example = max(1, peak_bytes(lambda: trial.ascent(one)))
        examples, at_once = tiling(per_example, len(clean), self.memory_limit // 2, device)
        for first in range(0, len(clean), examples):
            batch = clean[first : first + examples].to(device)
            its_targets = targets[first : first + examples].to(device)
            yield AveragedLoss(posterior, draws, its_targets, at_once, self.preprocess), batch

    def _checked(self, inputs: Inputs) -> Tensor:
        if not isinstance(inputs, Tensor) or not inputs.is_floating_point():
            kind = inputs.dtype if isinstance(inputs, Tensor) else type(inputs).__name__
            raise TypeError(
                "an attack moves its inputs by small amounts, so they must be one floating-point "
                f"tensor; got {kind}. Whole numbers from 0 to 255 go in as images.float() / 255."
            )
        if not inputs.numel():
            raise ValueError("there is nothing to attack: the inputs are empty.")
        low, high = self.bounds or (-math.inf, math.inf)
        if not bool(((inputs >= low) & (inputs <= high) & inputs.isfinite()).all()):
            raise ValueError(
                f"inputs run from {float(inputs.min()):g} to {float(inputs.max()):g}, outside "
                f"bounds={self.bounds}. Attack the images before they are normalised, with the "
                "normalisation as preprocess=; or give the bounds of what you attack, in its own "
                "units (None for no bounds). NaN and infinity cannot be attacked."
            )
        return inputs.detach()

    def _check_targets(
        self, posterior: Posterior[Any], draws: Draws, one: Tensor, targets: Tensor
    ) -> None:
        """Lets the likelihood check all targets before the work begins.

        This happens on the CPU, where the likelihood also checks the values: on a GPU a class that
        does not exist would crash the program.
        """
        prepared = one if self.preprocess is None else self.preprocess(one)
        outputs = posterior(prepared, draws.first()).cpu()
        outputs = outputs.expand(1, len(targets), *outputs.shape[2:])
        unweighted(posterior.likelihood).log_prob(outputs, targets.cpu())


def _moved(perturbed: Perturbed, device: torch.device) -> Perturbed:
    return Perturbed(*(value.to(device) for value in perturbed))


def _check_epsilon(epsilon: float) -> None:
    """Raises if epsilon is negative or not finite."""
    if not 0 <= epsilon < math.inf:
        raise ValueError(
            f"epsilon={epsilon}: the size of a perturbation is a finite number, 0 or more."
        )
