"""The training objective, and the scale of its terms.

    free energy = mean NLL per datum + temperature · β/N · complexity + auxiliary

The likelihood is averaged over the examples of a batch (and over weight draws), the complexity is
in nats over all weights, N is the size of the training set. With β = temperature = 1 this is the
negative evidence lower bound divided by N, whatever the batch size.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from bbh import checks
from bbh.batches import Batch, as_batch
from bbh.execution import Execution, Fork
from bbh.posterior import AdversarialTraining, Posterior
from bbh.samples import Samples


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
    temperature: float | None = None,
    num_samples: int | None = None,
    likelihood_samples: int | None = None,
    execution: Execution | None = None,
) -> FreeEnergy:
    """One stochastic evaluation of the objective on a batch.

    Args:
        posterior: The posterior that is trained.
        batch: ``(inputs, targets)``, ``(inputs, targets, weights)`` or a dictionary.
        num_data: N, the number of examples in the whole training set, not in the batch.
        beta: Weight β of the complexity, which ``fit`` can anneal.
        temperature: Constant factor on the complexity, equivalent to raising the likelihood to the
            power of 1/temperature. Below one the posterior is "cold". None takes what ``fit``
            takes: 1, but less for Bayes by Hypernet on wide networks.
        num_samples: The number of weight draws; None takes the method's own number.
        likelihood_samples: How many of these draws enter the likelihood; None takes the method's
            own number. (The paper's code uses one of five.)
        execution: How to put the draws through the network; None takes the posterior's default.
    """
    check_settings(
        posterior,
        num_data=num_data,
        temperature=temperature,
        num_samples=num_samples,
        likelihood_samples=likelihood_samples,
    )
    if not isinstance(beta, Tensor):
        checks.number("beta", beta)
    if temperature is None:
        temperature = own_temperature(posterior, num_data)
    weights = posterior.weights
    samples = posterior.sample(num_samples or weights.draws_per_step(likelihood_samples))
    used = samples
    number = likelihood_samples or weights.likelihood_samples or samples.num_samples
    if number < samples.num_samples:
        used = samples.take(slice(number))
    # Neither needs the other, and on a GPU both have kernels too small to fill it.
    costing = Fork(lambda: weights.cost(samples, posterior.prior), samples)
    nll = negative_log_likelihood(posterior, as_batch(batch), used, execution)
    cost = costing.result()
    auxiliary = nll.new_zeros(()) + cost.auxiliary
    total = nll + temperature * beta / num_data * cost.complexity + auxiliary
    return FreeEnergy(total, nll, cost.complexity, auxiliary)


def own_temperature(posterior: Posterior[Any], num_data: float) -> float:
    """The temperature that ``fit`` takes if it is given none.

    It is 1, the evidence lower bound, for all methods but Bayes by Hypernet, whose complexity would
    outweigh the data in a wide network: there it is min(1, max(N/D, 75/U)) for N examples, D
    Bayesian weights and U units that have them (or inputs of one unit, if these are more). A prior
    that was learned from other data keeps its full weight, since what it says must not get lost.

    Args:
        posterior: The posterior to train.
        num_data: N, the number of training examples, or the sum of their weights.
    """
    return 1.0 if posterior.prior.is_learned else posterior.weights.own_temperature(num_data)


def auxiliary_loss(posterior: Posterior[Any], num_samples: int | None = None) -> Tensor:
    """The loss of helper networks alone, for the steps that train nothing else.

    Args:
        posterior: A posterior whose ``weights.auxiliary_steps`` is positive.
        num_samples: The number of weight draws; None takes the method's own number.
    """
    weights = posterior.weights
    with torch.no_grad():  # the weights are not trained, so their draws need no gradient
        samples = posterior.sample(num_samples or weights.samples_per_step)
    return torch.as_tensor(weights.cost(samples, posterior.prior).auxiliary)


def check_settings(
    posterior: Posterior[Any],
    *,
    num_data: int,
    temperature: float | None,
    num_samples: int | None,
    likelihood_samples: int | None,
) -> None:
    """Raises for settings of ``free_energy`` that cannot work."""
    checks.whole("num_data", num_data, 1, "give the number of training examples")
    if temperature is not None:
        checks.number("temperature", temperature)
    if num_samples is not None:
        checks.whole("num_samples", num_samples, 1, "draw at least one, or None")
    turns = posterior.weights.turns
    for name, number in (("num_samples", num_samples), ("likelihood_samples", likelihood_samples)):
        if number is not None and number > 0 and number % turns:
            raise ValueError(
                f"{name}={number}: the {turns} members of a mixture share the draws of a step "
                f"evenly. Choose a multiple of {turns}, or None."
            )
    if likelihood_samples is None:
        return
    checks.whole("likelihood_samples", likelihood_samples, 1, "use at least one, or None")
    drawn = num_samples or posterior.weights.draws_per_step(likelihood_samples)
    if likelihood_samples > drawn:
        raise ValueError(
            f"likelihood_samples={likelihood_samples}: a step has only {drawn} draws. Raise "
            "num_samples, or leave likelihood_samples out."
        )


def negative_log_likelihood(
    posterior: Posterior[Any],
    batch: Batch,
    samples: Samples,
    execution: Execution | None = None,
) -> Tensor:
    """−log p(targets | inputs, w), averaged over examples and weight draws."""
    outputs = posterior(batch.inputs, samples, execution=execution)
    nll = _mean_nll(posterior, batch, outputs)
    if posterior.adversarial is None:
        return nll
    inputs = _perturbed_inputs(posterior, posterior.adversarial, batch, samples, execution)
    outputs = posterior(inputs, samples, inputs_per_draw=True, execution=execution)
    weight = posterior.adversarial.weight
    return (1 - weight) * nll + weight * _mean_nll(posterior, batch, outputs)


def _mean_nll(posterior: Posterior[Any], batch: Batch, outputs: Tensor) -> Tensor:
    return -posterior.likelihood.log_prob(outputs, batch.targets, batch.weights).mean()


def _perturbed_inputs(
    posterior: Posterior[Any],
    adversarial: AdversarialTraining,
    batch: Batch,
    samples: Samples,
    execution: Execution | None,
) -> Tensor:
    """Perturbed inputs [S, B, …]: for each draw, the batch moved to increase that draw's loss."""
    if not isinstance(batch.inputs, Tensor) or not batch.inputs.is_floating_point():
        raise TypeError(
            "adversarial training perturbs inputs, so they must be one floating-point tensor; "
            f"got {type(batch.inputs).__name__}. Use adversarial=None."
        )
    with torch.enable_grad():
        # The loss is a mean over draws, and each draw has its own copy of the inputs. The sign of
        # the gradient therefore depends on that draw alone.
        repeated = batch.inputs.detach().expand(samples.num_samples, *batch.inputs.shape)
        inputs = repeated.clone().requires_grad_()
        outputs = posterior(inputs, samples.detach(), inputs_per_draw=True, execution=execution)
        (gradient,) = torch.autograd.grad(_mean_nll(posterior, batch, outputs), inputs)
    return batch.inputs + adversarial.epsilon * gradient.sign()
