"""The loss that attacks increase, −log of the averaged predictive probability, and its gradient."""

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from bbh.likelihoods import Bernoulli, Categorical, Likelihood
from bbh.posterior import Posterior
from bbh.prediction.draws import Draws, seeded
from bbh.samples import Samples

Preprocess = Callable[[Tensor], Tensor]


class AveragedLoss:
    """−log of the averaged predictive probability of a batch's targets, and its gradient.

        L_b(x) = −log 1/S Σ_s p(y_b | x, w_s)
        ∇L_b(x) = −Σ_s r_sb ∇ log p(y_b | x, w_s),   r_b = softmax_s log p(y_b | x, w_s)

    The draws are processed in chunks. Only the log-sum-exp of each chunk and its gradient are kept,
    and the gradients of chunks are weighted by their shares of the joint sum. One pass therefore
    gives the exact gradient for any chunk size.

    If the network itself is random (dropout left on), every pass uses the same seed, so that the
    loss is one function of x.

    Args:
        posterior: The posterior, in evaluation mode so that examples do not affect each other.
        draws: The S weight draws.
        targets: The targets of the batch, on the posterior's device.
        at_once: The number of draws per chunk.
        preprocess: A function from the attacked inputs to the network's inputs.
    """

    def __init__(
        self,
        posterior: Posterior[Any],
        draws: Draws,
        targets: Tensor,
        at_once: int,
        preprocess: Preprocess | None,
    ):
        self._posterior = posterior
        self._likelihood = unweighted(posterior.likelihood)
        self._draws = draws
        self._targets = targets
        self._at_once = at_once
        self._preprocess = preprocess
        self._seed = int(torch.randint(2**62, ()))

    def renewed(self) -> "AveragedLoss":
        """The same loss with new weight draws."""
        return AveragedLoss(
            self._posterior, self._draws.renewed(), self._targets, self._at_once, self._preprocess
        )

    def value(self, inputs: Float[Tensor, "B *event"]) -> Float[Tensor, " B"]:
        """The loss L_b of each example in nats, in float64."""
        total = self._nothing(inputs)
        with torch.no_grad(), self._seeded():
            for some in self._draws.at_most(self._at_once):
                total = torch.logaddexp(total, self._log_probs(inputs, some).logsumexp(0))
        return math.log(self._draws.total) - total

    def gradient(
        self, inputs: Float[Tensor, "B *event"]
    ) -> tuple[Float[Tensor, " B"], Float[Tensor, "B *event"]]:
        """The loss L_b and its gradient ∇L_b for each example."""
        total, slope = self._nothing(inputs), torch.zeros_like(inputs)
        with self._seeded():
            for some in self._draws.at_most(self._at_once):
                with torch.enable_grad():
                    leaf = inputs.detach().requires_grad_()
                    chunk = self._log_probs(leaf, some).logsumexp(0)
                    (chunk_slope,) = torch.autograd.grad(chunk.sum(), leaf)
                chunk = chunk.detach()
                joint = torch.logaddexp(total, chunk)
                slope = _scale(slope, (total - joint).exp())
                slope = slope + _scale(chunk_slope, (chunk - joint).exp())
                total = joint
        return math.log(self._draws.total) - total, -slope

    def mean_over_draws(
        self, inputs: Float[Tensor, "B *event"], step: Callable[[Tensor], Tensor]
    ) -> Float[Tensor, "B *event"]:
        """1/S Σ_s step(∇ −log p(y | x, w_s)): the average of the steps of single draws."""
        total = torch.zeros_like(inputs)
        with self._seeded():
            for some in self._draws.at_most(self._at_once):
                shape = (some.num_samples, *inputs.shape)
                with torch.enable_grad():
                    leaf = inputs.detach().expand(shape).clone().requires_grad_()
                    log_probs = self._log_probs(leaf, some, inputs_per_draw=True)
                    (slopes,) = torch.autograd.grad(-log_probs.sum(), leaf)
                total = total + step(slopes.flatten(0, 1)).view_as(slopes).sum(0)
        return total / self._draws.total

    def _log_probs(
        self, inputs: Tensor, samples: Samples, *, inputs_per_draw: bool = False
    ) -> Float[Tensor, "S B"]:
        if self._preprocess is not None and inputs_per_draw:
            # Preprocessing expects one axis of images, so the axes of draws and examples are
            # joined for it.
            prepared = self._preprocess(inputs.flatten(0, 1))
            inputs = prepared.unflatten(0, inputs.shape[:2])
        elif self._preprocess is not None:
            inputs = self._preprocess(inputs)
        outputs = self._posterior(inputs, samples.detach(), inputs_per_draw=inputs_per_draw)
        # In double precision: in float32, 1 − p of a very confident network rounds to 0, and the
        # gradient would lack the term of the target.
        return self._likelihood.log_prob(outputs.double(), self._targets)

    def _nothing(self, inputs: Tensor) -> Tensor:
        return torch.full((len(inputs),), -math.inf, dtype=torch.float64, device=inputs.device)

    def _seeded(self) -> AbstractContextManager[None]:
        return seeded(self._seed, self._posterior.device)


def unweighted(likelihood: Likelihood[Any]) -> Likelihood[Any]:
    """The likelihood without class weights: a class of weight 0 could not be attacked."""
    if isinstance(likelihood, Categorical):
        return Categorical()
    return Bernoulli() if isinstance(likelihood, Bernoulli) else likelihood


def _scale(values: Tensor, factors: Float[Tensor, " B"]) -> Tensor:
    return values * factors.to(values.dtype).view(-1, *[1] * (values.dim() - 1))
