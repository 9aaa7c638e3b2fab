"""Bayes by Backprop: an independent Gaussian for every weight."""

import math

import torch
from torch import Tensor

from bbh.cost import Cost
from bbh.divergences import ClosedForm, Divergence, Marginals
from bbh.divergences.base import check_num_samples
from bbh.params import Params, TensorTable, unflatten
from bbh.priors import Prior
from bbh.weights.base import WeightDistribution
from bbh.weights.per_example import Flipout, LocalReparametrisation, PerExampleWeight, Sampling


class MeanFieldNormal(WeightDistribution):
    """q(w) = Π N(loc, scale²), Blundell et al. (2015).

    Args:
        loc: Initial means.
        initial_scale: Initial standard deviation of every weight.
        divergence: KL to the prior; closed form unless an estimator is to be studied.
        sampling: One draw for the whole batch, or one per example where the layer allows.
        samples_per_step: Weight draws per training step.
    """

    def __init__(
        self,
        loc: Params,
        initial_scale: float = 0.01,
        divergence: Divergence | None = None,
        sampling: Sampling = Sampling.WEIGHTS,
        samples_per_step: int = 1,
    ):
        super().__init__()
        self.shapes = {name: value.shape for name, value in loc.items()}
        self.sampling = Sampling(sampling)
        self.loc = TensorTable(loc, trainable=True)
        log_scale = math.log(initial_scale)
        self.log_scale = TensorTable(
            {name: torch.full_like(value, log_scale) for name, value in loc.items()},
            trainable=True,
        )
        self.divergence = divergence or ClosedForm()
        check_num_samples(self.divergence, samples_per_step)
        self.samples_per_step = samples_per_step
        self.auxiliary_steps = self.divergence.auxiliary_steps()
        self.pretraining_steps = self.divergence.pretraining_steps()
        helper = self.divergence.helper(self.shapes)
        self.helper = helper and helper.to(next(iter(loc.values())))

    def sample(self, num_samples: int) -> Params:
        """loc + scale · ε."""
        marginals = self.marginals()
        sampling = self.sampling if self.training else Sampling.WEIGHTS
        if sampling is Sampling.WEIGHTS and self._one_type():
            # Side by side they take a few passes instead of a few per tensor.
            loc, scale = (_side_by_side(part) for part in marginals)
            noise = torch.randn(num_samples, len(loc), dtype=loc.dtype, device=loc.device)
            return unflatten(torch.addcmul(loc, scale, noise), self.shapes)
        return {
            name: draw_normal(
                marginals.loc[name].expand(num_samples, *shape),
                marginals.scale[name].expand(num_samples, *shape),
                sampling,
            )
            for name, shape in self.shapes.items()
        }

    def cost(self, samples: Params, prior: Prior) -> Cost:
        """The chosen divergence between q and the prior."""
        return self.divergence(
            samples, self.shapes, prior, marginals=self.marginals(), helper=self.helper
        )

    def check_prior(self, prior: Prior) -> None:
        """As the divergence demands."""
        prior.check(self.shapes)
        self.divergence.check(prior, has_marginals=True)

    def marginals(self) -> Marginals:
        """Means and standard deviations."""
        if self._one_type():
            scale = _side_by_side(self.log_scale()).exp().unsqueeze(0)
            scales = {name: one[0] for name, one in unflatten(scale, self.shapes).items()}
            return Marginals(self.loc(), scales)
        return Marginals(
            self.loc(), {name: value.exp() for name, value in self.log_scale().items()}
        )

    def _one_type(self) -> bool:
        return len({value.dtype for value in self.loc().values()}) == 1


def _side_by_side(values: Params) -> Tensor:
    return torch.cat([value.flatten() for value in values.values()])


def draw_normal(loc: Tensor, scale: Tensor, sampling: Sampling) -> Tensor:
    """Stacked Gaussian draws, with a per-example recipe for kernels if ``sampling`` asks."""
    samples = loc + scale * torch.randn_like(loc)
    if sampling is Sampling.WEIGHTS or loc.dim() < 3:  # [S, n] are biases
        return samples
    if sampling is Sampling.LOCAL:
        return PerExampleWeight.wrap(samples, LocalReparametrisation(loc, scale))
    return PerExampleWeight.wrap(samples, Flipout(loc))
