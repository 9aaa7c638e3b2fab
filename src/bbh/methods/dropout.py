"""MC dropout as a distribution over weights: kernels with random input units switched off."""

import torch
from torch import Tensor

from bbh.cost import Cost
from bbh.distribution import WeightDistribution
from bbh.per_example import InputDropout, PerExampleWeight
from bbh.priors import Prior
from bbh.samples import Params, TensorTable


class DropoutMasks(WeightDistribution):
    """w = kernel ∘ mask / keep, mask ~ Bernoulli(keep) per input unit, Gal & Ghahramani (2016).

    In training every example gets a mask of its own where the layer allows; a draw for
    prediction has one mask for all inputs, so that it is one function.

    Args:
        kernels: Initial values of all covered parameters.
        input_axes: For each masked tensor, the axis of its input units.
        rate: Probability of switching a unit off.
        groups: Of grouped convolutions, whose output filters see one group of units each.
    """

    def __init__(
        self,
        kernels: Params,
        input_axes: dict[str, int],
        rate: float = 0.5,
        groups: dict[str, int] | None = None,
    ):
        super().__init__()
        self.shapes = {name: value.shape for name, value in kernels.items()}
        self.kernels = TensorTable(kernels, trainable=True)
        self.input_axes = input_axes
        self.rate = rate
        self.groups = groups or {}

    def sample(self, num_samples: int) -> Params:
        """One mask per draw; in training one per example."""
        samples: Params = {}
        for name, kernel in self.kernels().items():
            stacked = kernel.expand(num_samples, *kernel.shape)
            axis = self.input_axes.get(name)
            if axis is not None:
                stacked = stacked * self._mask(name, kernel, axis, num_samples) / (1 - self.rate)
                # Transposed convolutions have their inputs first, and no per-example recipe.
                if self.training and axis == 1:
                    stacked = PerExampleWeight.wrap(stacked, InputDropout(kernel, self.rate))
            samples[name] = stacked
        return samples

    def cost(self, samples: Params, prior: Prior) -> Cost:
        """E_q[−log p(w)] of the masked kernels, exact; q's entropy is constant.

        For a Gaussian prior this is the known L2 surrogate keep/2 · ‖kernel/keep‖²/scale².
        """
        keep = 1 - self.rate
        total = next(iter(samples.values())).new_zeros(())
        for name, kernel in self.kernels().items():
            if name in self.input_axes:
                on = prior.log_prob(name, kernel / keep)
                off = prior.log_prob(name, torch.zeros_like(kernel))
                total = total - (keep * on + self.rate * off).sum()
            else:
                total = total - prior.log_prob(name, kernel).sum()
        return Cost(total)

    def _mask(self, name: str, kernel: Tensor, axis: int, num_samples: int) -> Tensor:
        """Ones for units that stay, in a shape that broadcasts over the stacked kernels."""
        groups = self.groups.get(name, 1) if axis == 1 else 1
        kept = torch.rand(num_samples, groups, kernel.shape[axis], device=kernel.device)
        if groups > 1:
            # A filter of a grouped convolution sees the units of its own group only.
            kept = kept.repeat_interleave(kernel.shape[0] // groups, dim=1)
        kept = kept if axis == 1 else kept.transpose(1, 2)
        mask = (kept >= self.rate).to(kernel.dtype)
        return mask.reshape(*mask.shape, *[1] * (kernel.dim() - 2))
