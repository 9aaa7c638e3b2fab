"""The objective: one scale convention, written once.

    free energy = mean NLL per datum + temperature · β/N · complexity + auxiliary

The likelihood is averaged over the examples of a batch (and over weight draws), the complexity is
in nats over all weights, N is the size of the training set. With β = temperature = 1 this is the
negative evidence lower bound divided by N, whatever the batch size.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bbh.batches import Batch, as_batch
from bbh.per_example import take
from bbh.posterior import AdversarialTraining, Posterior
from bbh.samples import Params, num_draws


class FreeEnergy(NamedTuple):
    """The objective and its terms; ``total`` is what to minimise."""

    total: Tensor
    nll: Tensor
    complexity: Tensor
    auxiliary: Tensor


def free_energy(
    posterior: Posterior[Any],
    batch: Any,
    *,
    num_data: int,
    beta: float | Tensor = 1.0,
    temperature: float = 1.0,
    num_samples: int | None = None,
    likelihood_samples: int | None = None,
) -> FreeEnergy:
    """One stochastic evaluation of the objective on a batch.

    Args:
        posterior: What is trained.
        batch: ``(inputs, targets)``, ``(inputs, targets, weights)`` or a dictionary.
        num_data: N, the number of training examples: never the batch's.
        beta: Weight of the complexity, for annealing.
        temperature: Constant factor on the complexity: the likelihood to the power of
            1/temperature. Below one the posterior is "cold".
        num_samples: Weight draws; None takes the method's own number.
        likelihood_samples: How many of them enter the likelihood; None takes all. (The paper's
            code uses one of five.)
    """
    if num_data < 1:
        raise ValueError(f"num_data={num_data}: give the number of training examples.")
    if num_samples is not None and num_samples < 1:
        raise ValueError(f"num_samples={num_samples}: draw at least one, or None.")
    if likelihood_samples is not None and likelihood_samples < 1:
        raise ValueError(f"likelihood_samples={likelihood_samples}: use at least one, or None.")
    weights = posterior.weights
    samples = weights.sample(num_samples or weights.samples_per_step)
    cost = weights.cost(samples, posterior.prior)
    used = samples
    if likelihood_samples is not None and likelihood_samples < num_draws(samples):
        used = take(samples, slice(likelihood_samples))
    nll = negative_log_likelihood(posterior, as_batch(batch), used)
    auxiliary = nll.new_zeros(()) + cost.auxiliary
    total = nll + temperature * beta / num_data * cost.complexity + auxiliary
    return FreeEnergy(total, nll, cost.complexity, auxiliary)


def negative_log_likelihood(posterior: Posterior[Any], batch: Batch, samples: Params) -> Tensor:
    """−log p(targets | inputs, w), averaged over examples and weight draws."""
    nll = _mean_nll(posterior, batch, samples)
    if posterior.adversarial is None:
        return nll
    perturbed = _nll_of_perturbed(posterior, posterior.adversarial, batch, samples)
    weight = posterior.adversarial.weight
    return (1 - weight) * nll + weight * perturbed


def _mean_nll(
    posterior: Posterior[Any], batch: Batch, samples: Params, *, inputs_per_draw: bool = False
) -> Tensor:
    outputs = posterior(batch.inputs, samples, inputs_per_draw=inputs_per_draw)
    log_prob = posterior.likelihood.log_prob(outputs, batch.targets)
    if batch.weights is not None:
        if batch.weights.shape != log_prob.shape[1:]:
            raise ValueError(
                f"example weights have shape {tuple(batch.weights.shape)}; one per example is "
                f"needed: {tuple(log_prob.shape[1:])}."
            )
        # Divided by the number of examples, not by the sum of weights: weight 2 counts twice.
        log_prob = log_prob * batch.weights.to(log_prob.dtype)
    return -log_prob.mean()


def _nll_of_perturbed(
    posterior: Posterior[Any], adversarial: AdversarialTraining, batch: Batch, samples: Params
) -> Tensor:
    if not isinstance(batch.inputs, Tensor) or not batch.inputs.is_floating_point():
        raise TypeError(
            "adversarial training perturbs inputs, so they must be one floating-point tensor; "
            f"got {type(batch.inputs).__name__}. Use adversarial=None."
        )
    fixed = {name: value.detach() for name, value in samples.items()}
    inputs = batch.inputs.detach().expand(num_draws(samples), *batch.inputs.shape)
    with torch.enable_grad():
        # The loss is a mean over draws and each sees its own inputs, so signs are each draw's own.
        inputs = inputs.clone().requires_grad_()
        clean = _mean_nll(posterior, batch._replace(inputs=inputs), fixed, inputs_per_draw=True)
        (gradient,) = torch.autograd.grad(clean, inputs)
    moved = batch.inputs + adversarial.epsilon * gradient.sign()
    return _mean_nll(posterior, batch._replace(inputs=moved), samples, inputs_per_draw=True)


# β as a function of the epoch = step / steps_per_epoch, counted from 0 and fractional.
Schedule = Callable[[float], float]


@dataclass(frozen=True)
class Linear:
    """0 before epoch ``start``, then in a line to 1 at epoch ``end``.

    ``Linear(5, 20)`` is the paper's schedule on MNIST, ``Linear(20, 35)`` on CIFAR5.

    >>> steps_per_epoch = 550
    >>> [Linear(5, 20)(step / steps_per_epoch) for step in (0, 2749, 2750, 6875, 11000)]
    [0.0, 0.0, 0.0, 0.5, 1.0]
    """

    start: float
    end: float

    def __post_init__(self):
        _check_order(self.start, self.end)

    def __call__(self, epoch: float) -> float:
        """β."""
        return _progress(epoch, self.start, self.end)


@dataclass(frozen=True)
class Cosine:
    """0 before epoch ``start``, then half a cosine to 1 at epoch ``end``."""

    start: float
    end: float

    def __post_init__(self):
        _check_order(self.start, self.end)

    def __call__(self, epoch: float) -> float:
        """β."""
        return 0.5 - 0.5 * math.cos(math.pi * _progress(epoch, self.start, self.end))


def _check_order(start: float, end: float) -> None:
    if not 0 <= start < end:
        raise ValueError(f"annealing from epoch {start} to {end}: it must start before it ends.")


def _progress(epoch: float, start: float, end: float) -> float:
    return min(1.0, max(0.0, (epoch - start) / (end - start)))
