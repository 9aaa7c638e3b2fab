"""MC dropout: kernels with random input units switched off."""

import torch
from torch import Tensor, nn

from bbh.distribution import Cost, WeightDistribution
from bbh.execution import Execution
from bbh.likelihoods import Likelihood, P
from bbh.methods.assembly import assemble
from bbh.methods.particles import Particles
from bbh.methods.registry import register
from bbh.network import Forward, Selection, divide
from bbh.network.layers import dropout_layers, input_axes, kernel_groups
from bbh.per_example import InputDropout, PerExampleWeight
from bbh.posterior import Posterior
from bbh.priors import Normal, Prior
from bbh.samples import Params, Samples, Shapes, TensorTable, stack

__all__ = ["DropoutMasks", "mc_dropout"]


@register
def mc_dropout(
    network: nn.Module,
    likelihood: Likelihood[P],
    prior: Prior = Normal(1.0),
    *,
    rate: float | None = None,
    bayesian: Selection = None,
    freeze_rest: bool = False,
    forward: Forward | None = None,
    execution: Execution | None = None,
) -> Posterior[P]:
    """Dropout that stays on for prediction, Gal & Ghahramani (2016).

    If the network has dropout layers and ``rate`` is None, these layers stay on. Otherwise random
    input units of every matrix and convolution except the first are switched off, which is the same
    as dropout before each of those layers.

    Args:
        rate: Probability of switching a unit off; None uses the network's own dropout layers, or
            0.5 (as in the paper) if the network has none.
        bayesian: Which parameters get a distribution: names, module names or glob patterns, or a
            predicate of name and tensor. All selected kernels are masked (the first kernel is left
            out only in the default selection), and the cost contains the prior density of all
            selected parameters.
    """
    network, values, points = divide(network, bayesian, freeze_rest=freeze_rest)
    own_layers = dropout_layers(network) if rate is None else ()
    if own_layers:
        weights: WeightDistribution = Particles(stack([values]), random_network=True)
    else:
        rate = 0.5 if rate is None else rate
        if not 0 < rate < 1:
            raise ValueError(f"rate={rate}: a dropout rate lies strictly between 0 and 1.")
        axes = input_axes(network, values)
        if bayesian is None and len(axes) > 1:
            axes.pop(next(iter(axes)))
        if not axes:
            raise ValueError(
                "there is no matrix or convolution among the Bayesian parameters to mask. Select "
                "one with bayesian=, or put nn.Dropout layers into the network."
            )
        weights = DropoutMasks(values, axes, rate, kernel_groups(network, axes))
    return assemble(
        network,
        weights,
        prior,
        likelihood,
        points=points,
        forward=forward,
        execution=execution,
        always_on=own_layers,
        chosen={"bayesian": None if bayesian is None else list(values), "rate": rate},
    )


class DropoutMasks(WeightDistribution):
    """w = kernel ∘ mask / keep, mask ~ Bernoulli(keep) per input unit, Gal & Ghahramani (2016).

    In training every example gets its own mask in layers that support this. A draw for prediction
    has one mask for all inputs, so that the draw is one function of the inputs.

    Args:
        kernels: Initial values of all covered parameters.
        input_axes: For each masked tensor, the axis of its input units.
        rate: Probability of switching a unit off.
        groups: For each grouped convolution, its number of groups. An output filter sees only the
            input units of one group.
    """

    # In training every example has a mask of its own, so batch norm sees all masks at once: its
    # running statistics are those of the function that was trained, whatever the mask.
    statistics_differ = False

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

    def sample(self, num_samples: int) -> Samples:
        """Draws one mask per weight draw, and in training one per example."""
        samples: Params = {}
        for name, kernel in self.kernels().items():
            stacked = kernel.expand(num_samples, *kernel.shape)
            axis = self.input_axes.get(name)
            if axis is not None:
                stacked = stacked * self._mask(name, kernel, axis, num_samples) / (1 - self.rate)
                # The kernel of a transposed convolution has its input units on axis 0, and there
                # is no per-example rule for it.
                if self.training and axis == 1:
                    stacked = PerExampleWeight.wrap(stacked, InputDropout(kernel, self.rate))
            samples[name] = stacked
        return Samples(samples, common=self.kernels())

    def cost(self, samples: Samples, prior: Prior) -> Cost:
        """E_q[−log p(w)] of the masked kernels, computed exactly. The entropy of q is constant.

        For a Gaussian prior this is the known L2 surrogate keep/2 · ‖kernel/keep‖²/scale².
        """
        keep = 1 - self.rate
        total = next(iter(samples.values())).new_zeros(())
        for name in self.shapes:
            kernel = samples.latent(name)
            if name in self.input_axes:
                on = prior.log_prob(name, kernel / keep)
                off = prior.log_prob(name, torch.zeros_like(kernel))
                total = total - (keep * on + self.rate * off).sum()
            else:
                total = total - prior.log_prob(name, kernel).sum()
        return Cost(total)

    def random_shapes(self) -> Shapes:
        """The masked tensors; all others are point estimates."""
        return {name: self.shapes[name] for name in self.input_axes}

    def _mask(self, name: str, kernel: Tensor, axis: int, num_samples: int) -> Tensor:
        """Ones for units that stay on, else zeros; broadcasts over the stacked kernels."""
        groups = self.groups.get(name, 1) if axis == 1 else 1
        kept = torch.rand(num_samples, groups, kernel.shape[axis], device=kernel.device)
        if groups > 1:
            # All filters of a group see the same units, so they share that group's mask.
            kept = kept.repeat_interleave(kernel.shape[0] // groups, dim=1)
        kept = kept if axis == 1 else kept.transpose(1, 2)
        mask = (kept >= self.rate).to(kernel.dtype)
        return mask.reshape(*mask.shape, *[1] * (kernel.dim() - 2))
