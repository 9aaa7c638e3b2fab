"""Bayes by Backprop: an independent Gaussian for every weight."""

import math

import torch
from torch import Tensor

from bbh.cost import Cost
from bbh.distribution import WeightDistribution
from bbh.divergences import ClosedForm, Divergence, Marginals
from bbh.divergences.base import check_num_samples
from bbh.per_example import Flipout, LocalReparametrisation, PerExampleWeight, Sampling
from bbh.priors import Prior
from bbh.samples import Params, TensorTable, side_by_side, unflatten


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
        loc, scale = self.marginals()
        sampling = self.sampling if self.training else Sampling.WEIGHTS
        if sampling is Sampling.WEIGHTS:
            noise = torch.randn(num_samples, len(loc), dtype=loc.dtype, device=loc.device)
            # Where no gradient is wanted, in the noise's own memory: that of all draws, once.
            into = None if torch.is_grad_enabled() else noise
            samples = unflatten(torch.addcmul(loc, scale, noise, out=into), self.shapes)
        else:
            locs, scales = (
                unflatten(part.expand(num_samples, -1), self.shapes) for part in (loc, scale)
            )
            samples = {name: draw_normal(locs[name], scales[name], sampling) for name in locs}
        # Side by side all have one type; single tensors may be of another.
        locs = self.loc()
        typed = {name: value.to(locs[name].dtype) for name, value in samples.items()}
        return _Draws(typed, Marginals(loc, scale))

    def cost(self, samples: Params, prior: Prior) -> Cost:
        """The chosen divergence between q and the prior."""
        # Those the draws were made from, unless they were made without gradient.
        known = samples.marginals if isinstance(samples, _Draws) else None
        if known is None or (torch.is_grad_enabled() and not known.loc.requires_grad):
            known = self.marginals()
        return self.divergence(samples, self.shapes, prior, marginals=known, helper=self.helper)

    def check_prior(self, prior: Prior) -> None:
        """As the divergence demands."""
        prior.check(self.shapes)
        self.divergence.check(prior, has_marginals=True)

    def marginals(self) -> Marginals:
        """Means and standard deviations."""
        return Marginals(side_by_side(self.loc()), side_by_side(self.log_scale()).exp())


class _Draws(Params):
    """Weight draws with the means and standard deviations they were made from."""

    def __init__(self, samples: Params, marginals: Marginals):
        super().__init__(samples)
        self.marginals = marginals


def draw_normal(loc: Tensor, scale: Tensor, sampling: Sampling) -> Tensor:
    """Stacked Gaussian draws, with a per-example recipe for kernels if ``sampling`` asks."""
    samples = loc + scale * torch.randn_like(loc)
    if sampling is Sampling.WEIGHTS or loc.dim() < 3:  # [S, n] are biases
        return samples
    if sampling is Sampling.LOCAL:
        return PerExampleWeight.wrap(samples, LocalReparametrisation(loc, scale))
    return PerExampleWeight.wrap(samples, Flipout(loc))
