"""The six methods: network in, posterior out. The library's table of contents.

| method | weight distribution |
|---|---|
| ``maximum_a_posteriori`` | one setting |
| ``deep_ensemble`` | several settings |
| ``bayes_by_backprop`` | an independent Gaussian per weight |
| ``mc_dropout`` | kernels with input units switched off at random |
| ``multiplicative_normalizing_flows`` | Gaussians whose means are scaled through a flow |
| ``bayes_by_hypernet`` | whatever a hypernetwork makes of noise |

Arguments that all of them take, described here once:

- ``network``: any ``nn.Module``; it is read, never changed.
- ``likelihood``: how targets arise from its outputs, see ``bbh.likelihoods``.
- ``prior``: over the Bayesian weights, see ``bbh.priors``.
- ``bayesian``: which parameters get a distribution: names, module names or glob patterns, or a
  predicate of name and tensor. The rest are point estimates. By default all that are trainable,
  but for normalisation layers.
- ``forward``: how to call the network, if not as ``network(inputs)``.
- ``execution``: ``Loop`` or ``Vmap``; chosen if None.
"""

import copy
import logging
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.nn.utils.parametrize import ParametrizationList

from bbh.distribution import WeightDistribution
from bbh.divergences import ClosedForm, Divergence, NearestNeighbour, NearestNeighbourEntropy
from bbh.execution.executor import Execution
from bbh.generators import Generator
from bbh.generators import default as default_generator
from bbh.likelihoods import Likelihood, P
from bbh.methods.dropout import DropoutMasks
from bbh.methods.flow_steps import FlowKind
from bbh.methods.flows import MultiplicativeFlow
from bbh.methods.hypernet import Implicit
from bbh.methods.mean_field import MeanFieldNormal
from bbh.methods.particles import Particles
from bbh.methods.product import Product
from bbh.noise import GaussianNoise
from bbh.per_example import Sampling
from bbh.posterior import (
    AdversarialTraining,
    Forward,
    Posterior,
    Recipe,
    check_parts,
    check_supported,
)
from bbh.priors import Normal, Prior
from bbh.samples import Params, Selection, select_bayesian, trainable_parameters

logger = logging.getLogger("bbh")


def maximum_a_posteriori(
    network: nn.Module,
    likelihood: Likelihood[P],
    prior: Prior = Normal(1.0),
    *,
    bayesian: Selection = None,
    forward: Forward | None = None,
    execution: Execution | None = None,
) -> Posterior[P]:
    """One weight setting, the mode of the posterior: ordinary training with weight decay."""
    values, rest = _split(network, bayesian)
    weights = _with_points(Particles(_stack([values])), rest)
    recipe = Recipe("maximum_a_posteriori", {"bayesian": list(values)})
    return Posterior(
        network, weights, prior, likelihood, forward=forward, execution=execution, recipe=recipe
    )


def deep_ensemble(
    network: nn.Module,
    likelihood: Likelihood[P],
    prior: Prior = Normal(1.0),
    *,
    num_members: int = 5,
    make_network: Callable[[], nn.Module] | None = None,
    adversarial: AdversarialTraining | None = None,
    bayesian: Selection = None,
    forward: Forward | None = None,
    execution: Execution | None = None,
) -> Posterior[P]:
    """Several networks trained side by side, Lakshminarayanan, Pritzel & Blundell (2017).

    The first member starts from ``network`` as it is, the others from a fresh initialisation.
    Members see the same batches; all their parameters, and batch-norm statistics, are their own
    (with ``bayesian`` only those it selects). The loss is the members' mean, so a plain SGD step
    is num_members times smaller than for one network; Adam does not notice.

    Args:
        num_members: Pawlowski et al. use 10 on MNIST and 5 on CIFAR5.
        make_network: Makes a freshly initialised network for each further member, where calling
            ``reset_parameters`` on the modules of a copy is not enough.
        adversarial: Train on perturbed inputs as well: ``AdversarialTraining(0.01)`` is the
            paper's, for images in [0, 1].
    """
    if num_members < 1:
        raise ValueError(f"num_members={num_members}: an ensemble has at least one member.")
    values, rest = _split(network, bayesian)
    make = make_network or (lambda: _fresh_copy(network))
    networks = [network, *(make() for _ in range(num_members - 1))]
    buffers: Params = {}
    own, points = [*values], rest
    if bayesian is None:
        buffers = _stack([dict(member.named_buffers()) for member in networks])
        # In one distribution with the kernels, so that a draw is a whole member.
        own, points = [*values, *rest], {}
    members = _stack([_pick(member, own) for member in networks])
    weights = _with_points(Particles(members, buffers, penalised=values), points)
    recipe = Recipe(
        "deep_ensemble",
        {
            "bayesian": None if bayesian is None else list(values),
            "num_members": num_members,
            "adversarial": adversarial,
        },
    )
    return Posterior(
        network,
        weights,
        prior,
        likelihood,
        forward=forward,
        execution=execution,
        adversarial=adversarial,
        recipe=recipe,
    )


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
    forward: Forward | None = None,
    execution: Execution | None = None,
) -> Posterior[P]:
    """An independent Gaussian for every weight, Blundell et al. (2015).

    Args:
        initial_scale: Initial standard deviation of every weight (the paper: e^−4.5 ≈ 0.011).
        sampling: One draw per batch, or one per example by local reparametrisation or Flipout
            where the layer is linear or a convolution.
        divergence: KL to the prior; None takes the closed form, or nearest neighbours where the
            prior is known only by samples.
        num_samples: Weight draws per training step; None takes 1, or 5 for an estimated divergence.
    """
    _check_scale(initial_scale)
    check_parts(likelihood, prior)
    values, rest = _split(network, bayesian)
    divergence = divergence or (ClosedForm() if prior.has_density else NearestNeighbour())
    draws = num_samples or (1 if divergence.needs_marginals else 5)
    weights = MeanFieldNormal(values, initial_scale, divergence, sampling, draws)
    recipe = Recipe(
        "bayes_by_backprop",
        {
            "bayesian": list(values),
            "initial_scale": initial_scale,
            "sampling": sampling,
            "divergence": divergence,
            "num_samples": draws,
        },
    )
    return Posterior(
        network,
        _with_points(weights, rest),
        prior,
        likelihood,
        forward=forward,
        execution=execution,
        recipe=recipe,
    )


def mc_dropout(
    network: nn.Module,
    likelihood: Likelihood[P],
    prior: Prior = Normal(1.0),
    *,
    rate: float | None = None,
    bayesian: Selection = None,
    forward: Forward | None = None,
    execution: Execution | None = None,
) -> Posterior[P]:
    """Dropout that stays on for prediction, Gal & Ghahramani (2016).

    A network with dropout layers of its own keeps them, left on, unless ``rate`` is given. For
    any other network input units of every matrix and convolution but the first are switched off,
    which is dropout before each of those layers.

    Args:
        rate: Probability of switching a unit off; None uses the network's own dropout layers, or
            0.5 (the paper's) where it has none.
        bayesian: Selected kernels are masked (all of them: the first is spared only by default),
            and selected parameters know the prior.
    """
    values, rest = _split(network, bayesian)
    own = tuple(
        name
        for name, module in network.named_modules()
        if isinstance(module, nn.modules.dropout._DropoutNd)  # pyright: ignore[reportPrivateUsage]
        and module.p > 0
    )
    if rate is None and own:
        weights: WeightDistribution = Particles(_stack([values]))
        # One setting, but every pass through the network is another draw.
        weights.num_distinct = None
    else:
        own = ()
        rate = 0.5 if rate is None else rate
        if not 0 < rate < 1:
            raise ValueError(f"rate={rate}: a dropout rate lies strictly between 0 and 1.")
        axes = _input_axes(network, values)
        if bayesian is None and len(axes) > 1:
            axes.pop(next(iter(axes)))
        if not axes:
            raise ValueError(
                "there is no matrix or convolution among the Bayesian parameters to mask. Select "
                "one with bayesian=, or put nn.Dropout layers into the network."
            )
        weights = DropoutMasks(values, axes, rate, _groups(network, axes))
    recipe = Recipe(
        "mc_dropout",
        {"bayesian": None if bayesian is None else list(values), "rate": None if own else rate},
    )
    return Posterior(
        network,
        _with_points(weights, rest),
        prior,
        likelihood,
        forward=forward,
        execution=execution,
        always_on=own,
        recipe=recipe,
    )


def multiplicative_normalizing_flows(
    network: nn.Module,
    likelihood: Likelihood[P],
    prior: Prior = Normal(1.0),
    *,
    initial_scale: float = 0.01,
    max_scale: float = 0.5,
    flow: FlowKind = FlowKind.REAL_NVP,
    num_flows: int = 2,
    sampling: Sampling = Sampling.LOCAL,
    bayesian: Selection = None,
    forward: Forward | None = None,
    execution: Execution | None = None,
) -> Posterior[P]:
    """Gaussian weights whose means are scaled by noise through a flow, Louizos & Welling (2017).

    Args:
        initial_scale: Initial standard deviation of every weight.
        max_scale: Upper limit of the standard deviations (0.5 on MNIST, 0.3 on CIFAR5).
        flow: Masked RealNVP or planar.
        num_flows: Steps of the flow, and as many of the auxiliary one.
        sampling: How training draws the Gaussian part.
    """
    _check_scale(initial_scale)
    _check_scale(max_scale, "max_scale")
    if initial_scale >= max_scale:
        # At the limit the clamp passes no gradient: the scales could never move.
        raise ValueError(f"initial_scale={initial_scale} must lie below max_scale={max_scale}.")
    values, rest = _split(network, bayesian)
    weights = MultiplicativeFlow(values, initial_scale, max_scale, flow, num_flows, sampling)
    recipe = Recipe(
        "multiplicative_normalizing_flows",
        {
            "bayesian": list(values),
            "initial_scale": initial_scale,
            "max_scale": max_scale,
            "flow": flow,
            "num_flows": num_flows,
            "sampling": sampling,
        },
    )
    return Posterior(
        network,
        _with_points(weights, rest),
        prior,
        likelihood,
        forward=forward,
        execution=execution,
        recipe=recipe,
    )


def bayes_by_hypernet(
    network: nn.Module,
    likelihood: Likelihood[P],
    prior: Prior = Normal(1.0),
    *,
    generator: Generator | None = None,
    noise: GaussianNoise | None = None,
    divergence: Divergence | None = None,
    num_samples: int = 5,
    bayesian: Selection = None,
    forward: Forward | None = None,
    execution: Execution | None = None,
) -> Posterior[P]:
    """Weights generated from noise by hypernetworks, Pawlowski et al. (2018).

    Args:
        generator: ``LayerWise``, ``Sliced`` or
            ``Single``; None takes a narrow layer-wise one, or for networks
            where that would be too large a sliced one, see ``bbh.generators.default``.
        noise: Dimension, and whether tensors share it; one dimension per tensor by default.
        divergence: Estimator of the KL; None takes nearest-neighbour entropy with the exact prior
            term, which does not share the bias of the paper's estimator, or the paper's where the
            prior is known only by samples.
        num_samples: Weight draws per training step.
    """
    check_parts(likelihood, prior)
    noise = noise or GaussianNoise()
    if divergence is None:
        neighbours = max(1, min(3, num_samples - 1))
        divergence = (
            NearestNeighbourEntropy(neighbours) if prior.has_density else NearestNeighbour()
        )
    divergence.check(prior, has_marginals=False)  # before anything large is built
    values, rest = _split(network, bayesian)
    generator = generator or default_generator({name: v.shape for name, v in values.items()})
    weights = Implicit(generator.build(values, noise), noise, divergence, num_samples)
    recipe = Recipe(
        "bayes_by_hypernet",
        {
            "bayesian": list(values),
            "generator": generator,
            "noise": noise,
            "divergence": divergence,
            "num_samples": num_samples,
        },
    )
    return Posterior(
        network,
        _with_points(weights, rest),
        prior,
        likelihood,
        forward=forward,
        execution=execution,
        recipe=recipe,
    )


def _split(network: nn.Module, bayesian: Selection) -> tuple[Params, Params]:
    """Copies of the Bayesian and of the other trainable parameters."""
    check_supported(network)
    chosen = set(select_bayesian(network, bayesian))
    values: Params = {}
    rest: Params = {}
    for name, value in trainable_parameters(network).items():
        (values if name in chosen else rest)[name] = value.detach().clone()
    return values, rest


def _with_points(weights: WeightDistribution, rest: Params) -> WeightDistribution:
    if not rest:
        return weights
    return Product([weights, Particles(_stack([rest]), penalised=())])


def _stack(settings: Iterable[Params]) -> Params:
    settings = list(settings)
    return {
        name: torch.stack([setting[name].detach() for setting in settings]) for name in settings[0]
    }


def _pick(network: nn.Module, names: Iterable[str]) -> Params:
    parameters: dict[str, Any] = dict(network.named_parameters())
    if missing := [name for name in names if name not in parameters]:
        raise ValueError(f"make_network() gave a network without the parameters {missing}.")
    return {name: parameters[name] for name in names}


def _fresh_copy(network: nn.Module) -> nn.Module:
    """A copy with every module initialised anew, as its own class does it."""
    fresh = copy.deepcopy(network)
    kept: list[str] = []
    for name, module in fresh.named_modules():
        own = [
            leaf for leaf, value in module.named_parameters(recurse=False) if value.requires_grad
        ]
        # nn.MultiheadAttention spells its method with an underscore.
        reset = getattr(module, "reset_parameters", None) or getattr(
            module, "_reset_parameters", None
        )
        # A frozen layer keeps its weights, so it keeps its batch-norm statistics too.
        frozen = not own and any(True for _ in module.parameters(recurse=False))
        if callable(reset) and not frozen and (own or not list(module.children())):
            reset()
        elif own:
            kept += [f"{name}.{leaf}".lstrip(".") for leaf in own]
    if kept:
        logger.warning(
            "ensemble members start with equal %s: their modules have no reset_parameters(). "
            "Pass make_network= for members that differ there too.",
            ", ".join(kept),
        )
    return fresh


def _input_axes(network: nn.Module, values: Params) -> dict[str, int]:
    """The axis of the input units of every matrix and convolution, in the network's order."""
    transposed = nn.modules.conv._ConvTransposeNd  # pyright: ignore[reportPrivateUsage]
    axes: dict[str, int] = {}
    for name, value in values.items():
        owner = network.get_submodule(name.rpartition(".")[0])
        # Rows of an embedding are looked up, not summed over: it has no input units. What lies
        # behind a parametrisation (a weight norm, say) is not the kernel that meets the inputs.
        without = nn.Embedding | nn.EmbeddingBag | ParametrizationList
        if value.dim() >= 2 and not isinstance(owner, without):
            axes[name] = 0 if isinstance(owner, transposed) else 1
    return axes


def _groups(network: nn.Module, names: Iterable[str]) -> dict[str, int]:
    owners = {name: network.get_submodule(name.rpartition(".")[0]) for name in names}
    convolution = nn.modules.conv._ConvNd  # pyright: ignore[reportPrivateUsage]
    return {name: m.groups for name, m in owners.items() if isinstance(m, convolution)}


def _check_scale(value: float, name: str = "initial_scale") -> None:
    if not value > 0:
        raise ValueError(f"{name}={value}: a standard deviation is positive.")
