"""Bayes by Backprop: an independent Gaussian for every weight."""

import math

import torch
from torch import Tensor, nn

from bbh.distribution import Cost, WeightDistribution
from bbh.divergences import ClosedForm, Divergence, NearestNeighbour, NormalMarginals
from bbh.divergences.base import SummedMarginals, check_num_samples
from bbh.execution import Execution
from bbh.likelihoods import Likelihood, P
from bbh.methods.assembly import assemble, check_positive
from bbh.methods.normal_draws import draw_in_one_loop
from bbh.methods.registry import register
from bbh.network import Forward, Selection, divide
from bbh.normal_numbers import standard_normal
from bbh.per_example import Flipout, LocalReparametrisation, PerExampleWeight, Sampling
from bbh.posterior import Posterior, check_parts
from bbh.priors import Normal, Prior
from bbh.samples import Params, Samples, TensorTable, as_vector, unflatten

__all__ = ["MeanFieldNormal", "bayes_by_backprop"]


@register
def bayes_by_backprop(
    network: nn.Module,
    likelihood: Likelihood[P],
    prior: Prior = Normal(1.0),
    *,
    initial_scale: float = 0.01,
    sampling: Sampling = Sampling.WEIGHTS,
    divergence: Divergence | None = None,
    num_samples: int | None = None,
    bayesian: Selection = None,
    freeze_rest: bool = False,
    forward: Forward | None = None,
    execution: Execution | None = None,
) -> Posterior[P]:
    """An independent Gaussian for every weight, Blundell et al. (2015).

    Args:
        initial_scale: Initial standard deviation of every weight (the paper: e^−4.5 ≈ 0.011).
        sampling: One draw per batch, or one per example by local reparametrisation or Flipout
            where the layer is linear or a convolution.
        divergence: How to compute the KL to the prior; None takes the closed form, or the
            nearest-neighbour estimator if the prior is known only by samples.
        num_samples: The number of weight draws per training step; None takes 1, or 5 if the
            divergence is estimated from draws.
    """
    check_positive(initial_scale=initial_scale)
    check_parts(likelihood, prior)
    network, values, points = divide(network, bayesian, freeze_rest=freeze_rest)
    divergence = divergence or (ClosedForm() if prior.has_density else NearestNeighbour())
    num_samples = num_samples or (1 if divergence.needs_marginals else 5)
    return assemble(
        network,
        MeanFieldNormal(values, initial_scale, divergence, sampling, num_samples),
        prior,
        likelihood,
        points=points,
        forward=forward,
        execution=execution,
        chosen={"bayesian": list(values), "divergence": divergence, "num_samples": num_samples},
    )


class MeanFieldNormal(WeightDistribution):
    """q(w) = Π N(loc, scale²), Blundell et al. (2015).

    Args:
        loc: Initial means.
        initial_scale: Initial standard deviation of every weight.
        divergence: How to compute the KL to the prior; None takes the closed form.
        sampling: One draw for the whole batch, or one per example in layers that support this.
        samples_per_step: The number of weight draws per training step.
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

    def sample(self, num_samples: int) -> Samples:
        """Draws loc + scale · ε with ε ~ N(0, I)."""
        sampling = self.sampling if self.training else Sampling.WEIGHTS
        if sampling is Sampling.WEIGHTS:
            return self._draw_weights(num_samples)
        loc, scale = self.marginals()
        locs, scales = (
            unflatten(part.expand(num_samples, -1), self.shapes) for part in (loc, scale)
        )
        draws = {name: draw_normal(locs[name], scales[name], sampling) for name in locs}
        return self._samples(draws, {"loc": loc, "scale": scale})

    def _draw_weights(self, num_samples: int) -> Samples:
        """Every draw is one weight setting for all examples."""
        if torch.is_grad_enabled():
            made = draw_in_one_loop(self.loc(), self.log_scale(), self.shapes, num_samples)
            if made is not None:
                common = {"loc": made.loc, "scale": made.scale, "sums": made.sums}
                return self._samples(made.draws, common)
        loc, scale = self.marginals()
        noise = standard_normal(num_samples, len(loc), loc)
        # Without gradients the draws overwrite the noise, which halves the memory needed.
        into = None if torch.is_grad_enabled() else noise
        # As rows: the gradient of a single draw is then no sum over draws.
        rows = loc.unsqueeze(0), scale.unsqueeze(0)
        draws = unflatten(torch.addcmul(*rows, noise, out=into), self.shapes)
        return self._samples(draws, {"loc": loc, "scale": scale})

    def _samples(self, draws: Params, common: Params) -> Samples:
        # The joint vector has a single dtype; each tensor gets its own dtype back.
        own = self.loc()
        typed = {name: value.to(own[name].dtype) for name, value in draws.items()}
        return Samples(typed, common=common)

    def cost(self, samples: Samples, prior: Prior) -> Cost:
        """The chosen divergence between q, as it was when it drew these samples, and the prior."""
        known = NormalMarginals(samples.latent("loc"), samples.latent("scale"))
        if samples.shares("sums"):
            known = SummedMarginals.of(*known, samples.latent("sums"))
        return self.divergence(samples, self.shapes, prior, marginals=known, helper=self.helper)

    def check_prior(self, prior: Prior) -> None:
        """Raises if the divergence cannot work with this prior."""
        prior.check(self.shapes)
        self.divergence.check(prior, has_marginals=True)

    def marginals(self) -> NormalMarginals:
        """Means and standard deviations of all weights, as two vectors."""
        return NormalMarginals(as_vector(self.loc()), as_vector(self.log_scale()).exp())


def draw_normal(loc: Tensor, scale: Tensor, sampling: Sampling) -> Tensor:
    """Stacked Gaussian draws; kernels also draw per example if ``sampling`` says so."""
    samples = loc + scale * torch.randn_like(loc)
    if sampling is Sampling.WEIGHTS or loc.dim() < 3:  # [S, n] are biases
        return samples
    if sampling is Sampling.LOCAL:
        return PerExampleWeight.wrap(samples, LocalReparametrisation(loc, scale))
    return PerExampleWeight.wrap(samples, Flipout(loc))
