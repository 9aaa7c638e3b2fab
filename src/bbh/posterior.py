"""Posterior = network × weight distribution × prior × likelihood."""

import copy
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.parameter import is_lazy
from torch.nn.utils.weight_norm import WeightNorm

from bbh.batches import Inputs
from bbh.distribution import WeightDistribution
from bbh.execution.executor import Execution, Executor
from bbh.likelihoods import Likelihood, P
from bbh.priors import Prior
from bbh.samples import Params, TensorTable, size, trainable_parameters

Forward = Callable[[nn.Module, Inputs], Tensor]


@dataclass(frozen=True)
class AdversarialTraining:
    """Trains on (1 − weight)·NLL(x) + weight·NLL(x + ε·sign ∇ₓNLL), each draw its own x'.

    Lakshminarayanan, Pritzel & Blundell (2017). Inputs must be floating-point tensors.

    Args:
        epsilon: Size of the perturbation in the inputs' own units.
        weight: Share of the perturbed examples in the loss.
    """

    epsilon: float = 0.01
    weight: float = 0.5


@dataclass(frozen=True)
class Recipe:
    """How a posterior was made, for storing it: a method's name and its arguments."""

    method: str
    arguments: dict[str, Any]


class Posterior(nn.Module, Generic[P]):
    """A Bayesian neural network.

    The network is kept as a template without values: weights come in as arguments, so a weight
    that is missing raises instead of passing silently. Its buffers and frozen parameters are
    copied, and the network that was passed in is never changed.

    Args:
        network: Any module.
        weights: A distribution over all its trainable parameters.
        prior: Over the Bayesian ones.
        likelihood: Copied, since it may learn.
        forward: How to call the network; by default ``network(inputs)``, with tuples and
            dictionaries spread over its arguments.
        execution: ``Loop`` or ``Vmap``; None chooses by network, device and batch.
        adversarial: Train on perturbed inputs as well.
        always_on: Names of modules that stay in training mode for prediction (MC dropout).
        recipe: How this posterior was made; without one it cannot be saved.
    """

    _call: "_Call"

    def __init__(
        self,
        network: nn.Module,
        weights: WeightDistribution,
        prior: Prior,
        likelihood: Likelihood[P],
        *,
        forward: Forward | None = None,
        execution: Execution | None = None,
        adversarial: AdversarialTraining | None = None,
        always_on: tuple[str, ...] = (),
        recipe: Recipe | None = None,
    ):
        super().__init__()
        check_supported(network)
        check_parts(likelihood, prior)
        if missing := sorted(trainable_parameters(network).keys() - weights.shapes.keys()):
            raise ValueError(f"the weight distribution does not cover {missing}.")
        weights.check_prior(prior)
        self.weights = weights
        self.prior = prior
        self.likelihood = copy.deepcopy(likelihood)
        self.execution = execution
        self.adversarial = adversarial
        self.always_on = always_on
        self.recipe = recipe
        everything = dict(network.named_parameters()) | dict(network.named_buffers())
        self.constants = TensorTable(
            {
                name: value.detach().clone()
                for name, value in everything.items()
                if name not in weights.shapes
            },
            trainable=False,
        )
        self.padding = TensorTable(_padding_rows(network, weights), trainable=False)
        # Hidden from nn.Module: a template has no values to move, count or save.
        self.__dict__["_call"] = _Call(_template(network), forward or call_network)
        self.executor = Executor(self._one, self.network, weights.shapes, self.statistics)
        # What was put into eval() by hand (a frozen feature extractor, say) stays in it.
        self._always_off = [
            name
            for name, module in network.named_modules()
            if network.training and not module.training
        ]
        self.train(network.training)

    @property
    def network(self) -> nn.Module:
        """The template: the network's structure on the meta device, without values."""
        return self._call.network

    @property
    def call_with(self) -> Forward:
        """How the network is called."""
        return self._call.how

    @property
    def device(self) -> torch.device:
        """Where the weights live."""
        return next(self.weights.parameters()).device

    def sample(self, num_samples: int) -> Params:
        """Weight draws ``{name: [num_samples, *shape]}``; values to reuse at will."""
        if num_samples < 1:
            raise ValueError(f"num_samples={num_samples}: draw at least one.")
        # A plain dictionary, as torch.func expects one; some distributions make more of it.
        return dict(self.weights.sample(num_samples))

    def forward(
        self, inputs: Inputs, samples: Params, *, inputs_per_draw: bool = False
    ) -> Float[Tensor, "S B *event"]:
        """The network's outputs for every draw.

        Args:
            inputs: A batch, on the posterior's device.
            samples: What ``sample`` gave; buffers by name may come along, one per draw.
            inputs_per_draw: The batch is one tensor [S, B, …], with examples for each draw.
        """
        if missing := self.weights.shapes.keys() - samples.keys():
            raise ValueError(f"the weight samples lack {sorted(missing)}.")
        return self.executor(inputs, samples, inputs_per_draw, self.execution)

    def train(self, mode: bool = True) -> "Posterior[P]":
        """Switches the template along, but for modules that are always on or always off."""
        super().train(mode)
        self.network.train(mode)
        for name in self._always_off:
            self.network.get_submodule(name).eval()
        for name in self.always_on:
            self.network.get_submodule(name).train(True)
        return self

    def statistics(self) -> list[Tensor]:
        """The network's own buffers, wherever they are kept: what a pass in training writes to."""
        own = dict(self.network.named_buffers()).keys()
        tables = (module for module in self.modules() if isinstance(module, TensorTable))
        return [value for table in tables for name, value in table().items() if name in own]

    def extra_repr(self) -> str:
        """One line about what is Bayesian, for print(posterior)."""
        return (
            f"network={type(self.network).__name__}, weights={size(self.weights.shapes):,}, "
            f"prior={self.prior}"
        )

    def _one(self, inputs: Inputs, draw: Params) -> Tensor:
        for name, row in self.padding().items():
            index = cast(int, self.network.get_submodule(name.rpartition(".")[0]).padding_idx)
            table = draw[name]
            # Joined from pieces: an index tensor would be copied from the host for every draw.
            kept = torch.cat([table[:index], row.unsqueeze(0), table[index + 1 :]])
            draw = draw | {name: kept}
        values = {f"network.{name}": value for name, value in (self.constants() | draw).items()}
        return functional_call(self._call, values, (inputs,), strict=True)


def call_network(network: nn.Module, inputs: Inputs) -> Tensor:
    """The default way to call a network: tuples and dictionaries are its arguments."""
    if isinstance(inputs, Mapping):
        return network(**cast(Mapping[str, Any], inputs))
    # Not a subclass: a packed sequence is a named tuple and one argument.
    if type(inputs) in (tuple, list):
        return network(*inputs)
    return network(inputs)


class _Call(nn.Module):
    """The network with the way to call it, so that an adapter runs inside functional_call."""

    def __init__(self, network: nn.Module, how: Forward):
        super().__init__()
        self.network = network
        self.how = how

    def forward(self, inputs: Inputs) -> Tensor:
        outputs = self.how(self.network, inputs)
        if not isinstance(outputs, Tensor):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(
                f"{type(self.network).__name__} returned {type(outputs).__name__}, not a tensor. "
                "Say which part to use, e.g. forward=lambda network, inputs: network(inputs)[0]."
            )
        return outputs


def _template(network: nn.Module) -> nn.Module:
    """A copy on the meta device. Ties between parameters stay ties: one tensor, one stand-in."""
    stand_ins: dict[int, Any] = {
        id(value): nn.Parameter(torch.empty_like(value, device="meta"), value.requires_grad)
        for value in network.parameters()
    }
    stand_ins |= {id(value): torch.empty_like(value, device="meta") for value in network.buffers()}
    try:
        return copy.deepcopy(network, stand_ins)
    except RuntimeError as error:
        raise TypeError(
            f"{type(network).__name__} cannot be copied: {error} A common cause is the old "
            "torch.nn.utils.weight_norm or spectral_norm: use the ones in "
            "torch.nn.utils.parametrizations."
        ) from error


def _padding_rows(network: nn.Module, weights: WeightDistribution) -> Params:
    """Rows of embeddings that stand for no token: no data ever reach them, only the prior would.

    They keep the network's own value in every draw. A matrix that serves elsewhere too (a tied
    output layer) does learn that row and is left alone.
    """
    names = [id(value) for _, value in network.named_parameters(remove_duplicate=False)]
    rows: Params = {}
    for prefix, module in network.named_modules():
        name = f"{prefix}.weight".lstrip(".")
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and name in weights.shapes:
            shared = names.count(id(module.weight)) > 1
            if module.padding_idx is not None and not shared:
                rows[name] = module.weight[module.padding_idx].detach().clone()
    return rows


def check_parts(likelihood: object, prior: object) -> None:
    """Raises if the parts of a posterior are not what their places ask for."""
    if not isinstance(likelihood, Likelihood):
        raise TypeError(
            f"likelihood={likelihood!r}: pass an object of bbh.likelihoods, e.g. Categorical()."
        )
    if not isinstance(prior, Prior):
        raise TypeError(f"prior={prior!r}: pass an object of bbh.priors, e.g. Normal(1.0).")


def check_supported(network: nn.Module) -> None:
    """Raises for what cannot be made Bayesian, naming the module and the way out."""
    for name, module in network.named_modules():
        where = f"module {name!r} ({type(module).__name__})" if name else type(module).__name__
        if isinstance(module, torch.jit.ScriptModule):
            raise TypeError(
                f"{where} is compiled by torch.jit, whose weights are fixed inside it. Pass the "
                "Python module it was made from."
            )
        if isinstance(module, nn.DataParallel | nn.parallel.DistributedDataParallel):
            raise TypeError(
                f"{where} wraps the network for several devices. Pass network.module; bbh.fit "
                "distributes by itself."
            )
        # Their weight is a computed tensor, which cannot be copied.
        hooks = module._forward_pre_hooks.values()  # pyright: ignore[reportPrivateUsage]
        if any(isinstance(hook, WeightNorm) for hook in hooks):
            raise TypeError(
                f"{where} uses torch.nn.utils.weight_norm, which PyTorch has replaced: use the one "
                "in torch.nn.utils.parametrizations."
            )
        own = (module.named_parameters(recurse=False), module.named_buffers(recurse=False))
        for leaf, value in itertools.chain(*own):
            if is_lazy(value):
                raise TypeError(
                    f"{where}: {leaf!r} has no shape yet. Run one batch through the network first."
                )
            if value.requires_grad and value.is_complex():
                raise TypeError(
                    f"{where}: parameter {leaf!r} is complex; priors here are over real weights. "
                    "Freeze it with requires_grad_(False), or store real and imaginary part."
                )
