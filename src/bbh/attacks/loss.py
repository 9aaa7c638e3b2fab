"""The loss that attacks increase, −log of the averaged predictive probability, and its slope."""

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from bbh.likelihoods import Bernoulli, Categorical, Likelihood
from bbh.posterior import Posterior
from bbh.prediction.draws import Draws, seeded
from bbh.samples import Samples

Preprocess = Callable[[Tensor], Tensor]


class Height(NamedTuple):
    """How far an attack has come with each example of a batch, in float64.

    Attributes:
        loss: −log of the averaged predictive probability of the target, in nats.
        margin: How much more probable the likeliest other class is than the target, as a difference
            of logarithms: the prediction is wrong where it is above zero. If the targets are not
            classes, the loss once more.
    """

    loss: Float[Tensor, " B"]
    margin: Float[Tensor, " B"]


class AveragedLoss:
    """−log of the averaged predictive probability of a batch's targets, and its steepest ascent.

        L_b(x) = −log 1/S Σ_s p(y_b | x, w_s)
        ∇L_b(x) = −Σ_s r_sb ∇ log p(y_b | x, w_s),   r_b = softmax_s log p(y_b | x, w_s)

    The gradient of a very sure network vanishes: with a logit 50 above all others it is e⁻⁵⁰ times
    what it could be. Attacks need its direction only. For classes, ∇ log p = (1 − p) ∇m with the
    logit margin m = log p − log(1 − p), which does not vanish, so the direction is that of

        −Σ_s v_sb ∇m_sb,   v_b = softmax_s [log p_sb + log(1 − p_sb)].

    The draws are processed in chunks. Of each chunk only the weighted sum of slopes is kept, and
    the chunks are weighted by their shares of the joint sum. One pass therefore gives the exact
    direction for any chunk size.

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

    def value(self, inputs: Float[Tensor, "B *event"]) -> Height:
        """The loss and the margin of each example."""
        total: Tensor | None = None
        with torch.no_grad(), self._seeded():
            for some in self._draws.at_most(self._at_once):
                chunk = self._outcomes(inputs, some).log_probs.logsumexp(0)
                total = chunk if total is None else torch.logaddexp(total, chunk)
        return self._height(total)

    def ascent(self, inputs: Float[Tensor, "B *event"]) -> tuple[Height, Float[Tensor, "B *event"]]:
        """The height, and the direction of ∇L_b: the gradient times a positive factor per example.

        If the targets are not classes, the factor is one.
        """
        total: Tensor | None = None
        slope = torch.zeros_like(inputs)
        weight = torch.full((len(inputs),), -math.inf, dtype=torch.float64, device=inputs.device)
        with self._seeded():
            for some in self._draws.at_most(self._at_once):
                with torch.enable_grad():
                    leaf = inputs.detach().requires_grad_()
                    found = self._outcomes(leaf, some)
                    shares = found.log_weights.detach().softmax(0)
                    (chunk_slope,) = torch.autograd.grad(-(shares * found.climbed).sum(), leaf)
                log_probs, log_weights = found.log_probs.detach(), found.log_weights.detach()
                chunk = log_probs.logsumexp(0)
                total = chunk if total is None else torch.logaddexp(total, chunk)
                chunk_weight = log_weights.logsumexp(0)
                joint = torch.logaddexp(weight, chunk_weight)
                slope = _scale(slope, (weight - joint).exp())
                slope = slope + _scale(chunk_slope, (chunk_weight - joint).exp())
                weight = joint
        return self._height(total), slope

    def mean_over_draws(
        self, inputs: Float[Tensor, "B *event"], step: Callable[[Tensor], Tensor]
    ) -> Float[Tensor, "B *event"]:
        """1/S Σ_s step(∇ −log p(y | x, w_s)): the average of the steps of single draws.

        Args:
            inputs: Where the slopes are taken.
            step: From slopes to steps of size 1, whatever the size of the slopes.
        """
        total = torch.zeros_like(inputs)
        with self._seeded():
            for some in self._draws.at_most(self._at_once):
                shape = (some.num_samples, *inputs.shape)
                with torch.enable_grad():
                    leaf = inputs.detach().expand(shape).clone().requires_grad_()
                    climbed = self._outcomes(leaf, some, inputs_per_draw=True).climbed
                    (slopes,) = torch.autograd.grad(-climbed.sum(), leaf)
                total = total + step(slopes.flatten(0, 1)).view_as(slopes).sum(0)
        return total / self._draws.total

    def _outcomes(
        self, inputs: Tensor, samples: Samples, *, inputs_per_draw: bool = False
    ) -> "_Outcomes":
        if self._preprocess is not None and inputs_per_draw:
            # Preprocessing expects one axis of images, so the axes of draws and examples are
            # joined for it.
            prepared = self._preprocess(inputs.flatten(0, 1))
            inputs = prepared.unflatten(0, inputs.shape[:2])
        elif self._preprocess is not None:
            inputs = self._preprocess(inputs)
        outputs = self._posterior(inputs, samples.detach(), inputs_per_draw=inputs_per_draw)
        # In double precision: in float32, 1 − p of a very confident network rounds to 0.
        outputs = outputs.double()
        logits = _class_logits(self._likelihood, outputs, self._targets)
        if logits is not None:
            return _of_classes(logits)
        log_probs = self._likelihood.log_prob(outputs, self._targets)
        return _Outcomes(log_probs.unsqueeze(-1), log_probs, log_probs)

    def _height(self, total: Tensor | None) -> Height:
        assert total is not None  # there is at least one draw
        target, others = total[:, 0], total[:, 1:]
        if not others.numel():
            loss = math.log(self._draws.total) - target
            return Height(loss, loss)
        # log(1 + Σ others / target): exact also where the target's probability rounds to one.
        loss = F.softplus(others.logsumexp(1) - target)
        return Height(loss, others.amax(1) - target)

    def _seeded(self) -> AbstractContextManager[None]:
        return seeded(self._seed, self._posterior.device)


class _Outcomes(NamedTuple):
    """What a chunk of draws says about the targets.

    Attributes:
        log_probs: Of the target, and of each other class if the targets are classes.
        climbed: What an attack lowers for each draw: log p, or for classes log p − log(1 − p).
        log_weights: How much a draw counts in the direction of the averaged loss.
    """

    log_probs: Float[Tensor, "S B K"]
    climbed: Float[Tensor, "S B"]
    log_weights: Float[Tensor, "S B"]


def _class_logits(
    likelihood: Likelihood[Any], outputs: Tensor, targets: Tensor
) -> Float[Tensor, "S B C"] | None:
    """Logits with the target's first; None if an example has not one target among classes."""
    if isinstance(likelihood, Categorical) and outputs.dim() == 3:
        if likelihood.ignore_index is not None and bool((targets == likelihood.ignore_index).any()):
            return None
        outputs = likelihood.classes_last(outputs)
        index = targets.long().expand(outputs.shape[:-1]).unsqueeze(-1)
        # The target's own place among the others is taken by the lowest number there is.
        others = outputs.scatter(-1, index, torch.finfo(outputs.dtype).min)
        return torch.cat([outputs.gather(-1, index), others], -1)
    if isinstance(likelihood, Bernoulli) and outputs[0].numel() == len(targets):
        yes = targets.reshape(-1).to(outputs.dtype)
        if bool(((yes == 0) | (yes == 1)).all()):
            logits = outputs.reshape(*outputs.shape[:2]) * (2 * yes - 1)
            return torch.stack([logits, torch.zeros_like(logits)], -1)
    return None


def _of_classes(logits: Float[Tensor, "S B C"]) -> _Outcomes:
    margins = logits[..., 0] - logits[..., 1:].logsumexp(-1)
    weights = F.logsigmoid(margins) + F.logsigmoid(-margins)
    return _Outcomes(logits.log_softmax(-1), margins, weights)


def unweighted(likelihood: Likelihood[Any]) -> Likelihood[Any]:
    """The likelihood without class weights: a class of weight 0 could not be attacked."""
    if isinstance(likelihood, Categorical):
        return Categorical(ignore_index=likelihood.ignore_index, class_dim=likelihood.class_dim)
    if isinstance(likelihood, Bernoulli):
        return Bernoulli(ignore_index=likelihood.ignore_index)
    return likelihood


def _scale(values: Tensor, factors: Float[Tensor, " B"]) -> Tensor:
    return values * factors.to(values.dtype).view(-1, *[1] * (values.dim() - 1))
