"""Posterior = network × weight distribution × prior × likelihood."""

import copy
import itertools
import logging
from collections.abc import Collection, Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from bbh import checks
from bbh.batches import Inputs, explain_failure, move
from bbh.distribution import WeightDistribution
from bbh.execution import Automatic, DrawStatistics, Execution, NetworkFunction, Runnable
from bbh.frozen import Frozen
from bbh.likelihoods import Likelihood, P
from bbh.network import (
    Call,
    Forward,
    call_network,
    check_supported,
    padding_rows,
    statistics_layers,
    template,
    trainable_parameters,
)
from bbh.priors import Prior
from bbh.reference import Reference
from bbh.samples import Params, Samples, TensorTable, size

logger = logging.getLogger("bbh")

# Bytes of activations, while batch-norm statistics of draws are computed.
_STATISTICS_MEMORY = 512 * 2**20


@dataclass(frozen=True)
class AdversarialTraining:
    """Trains on (1 − weight)·NLL(x) + weight·NLL(x + ε·sign ∇ₓNLL).

    Lakshminarayanan, Pritzel & Blundell (2017). The inputs are perturbed separately for each weight
    draw, and must be floating-point tensors.

    Args:
        epsilon: Size of the perturbation in the units of the inputs.
        weight: Share of the perturbed examples in the loss.
    """

    epsilon: float = 0.01
    weight: float = 0.5

    def __post_init__(self):
        checks.number("AdversarialTraining(epsilon)", self.epsilon)
        checks.number("AdversarialTraining(weight)", self.weight)
        if self.weight > 1:
            raise ValueError(f"AdversarialTraining(weight={self.weight}): a share is at most 1.")


@dataclass(frozen=True)
class Recipe:
    """How a posterior was made: the name of the method and its arguments. Needed to store it."""

    method: str
    arguments: dict[str, Any]

    def shown(self) -> dict[str, Any]:
        """The arguments for people: without those left out, and without names of all weights."""
        parts: dict[str, Any] = {}
        for name, value in self.arguments.items():
            if isinstance(value, Recipe):
                parts |= {"members": value.method} | value.shown()
            elif name != "bayesian" and value is not None and value is not False:
                parts[name] = value
        return parts


class Posterior(nn.Module, Generic[P]):
    """A Bayesian neural network.

    The network is kept as a template without values. Weights are passed to it as arguments, so a
    missing weight raises an error instead of going unnoticed. The network's buffers are copied, and
    its frozen parameters are shared, not copied: however many they are, they take no memory of
    their own. The network that was passed in is never changed.

    Args:
        network: Any module.
        weights: A distribution over all trainable parameters of the network.
        prior: The prior of the Bayesian parameters.
        likelihood: How targets arise from the network's outputs. It is copied, since it may have
            parameters that are trained.
        forward: How to call the network; by default ``network(inputs)``, with tuples and
            dictionaries spread over its arguments.
        execution: ``Loop`` or ``Vmap``; None chooses by network, device and batch.
        adversarial: Settings for training on perturbed inputs as well; None for plain training.
        always_on: Names of modules that stay in training mode for prediction (MC dropout).
        chosen: What a method took for those of its arguments that were left open.

    Attributes:
        recipe: How a registered method made this posterior; without a recipe it cannot be saved.
        start: The network's trainable parameters and buffers when the posterior was made, on the
            CPU, to compare with after training; None if the network had no values, or for a
            posterior that was read from a file.
        constants: The network's buffers.
        frozen: The network's parameters that are not trained.
        reference: Training inputs for the batch-norm statistics of draws; see ``keep_reference``.
    """

    _call: Call

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
        chosen: Mapping[str, Any] | None = None,
    ):
        super().__init__()
        check_supported(network)
        check_parts(likelihood, prior)
        if missing := sorted(trainable_parameters(network).keys() - weights.shapes.keys()):
            raise ValueError(f"the weight distribution does not cover {missing}.")
        prior = prior.for_shapes(weights.shapes)
        weights.check_prior(prior)
        self.weights = weights
        self.prior = prior
        self.likelihood = copy.deepcopy(likelihood)
        self.execution = execution
        self.adversarial = adversarial
        self.always_on = always_on
        self.chosen = dict(chosen or {})
        self.recipe: Recipe | None = None
        parameters, buffers = dict(network.named_parameters()), dict(network.named_buffers())
        own = {name: value for name, value in buffers.items() if name not in weights.shapes}
        self.constants = TensorTable(
            {name: value.detach().clone() for name, value in own.items()}, trainable=False
        )
        self.frozen = Frozen(
            {n: value.detach() for n, value in parameters.items() if n not in weights.shapes}
        )
        # A dictionary, not a table: it is neither trained nor moved nor saved.
        self.start = _copied(parameters | buffers, weights.shapes.keys() | buffers)
        self.reference = Reference()
        self.padding = TensorTable(padding_rows(network, weights.shapes), trainable=False)
        # Hidden from nn.Module: a template has no values to move, count or save.
        self.__dict__["_call"] = Call(template(network), forward or call_network)
        self.runnable = self._runnable(self._call, self.network)
        # If some modules are in eval() mode and others are not, those in eval() mode stay there: a
        # frozen feature extractor, say.
        modules = dict(network.named_modules())
        some_train = any(module.training for module in modules.values())
        self._always_off = [
            name for name, module in modules.items() if some_train and not module.training
        ]
        layers = statistics_layers(self.network)
        self._draw_statistics = DrawStatistics(
            self.runnable,
            # A layer that is always in evaluation mode keeps the statistics it came with.
            {name: layer for name, layer in layers.items() if name not in self._always_off},
        )
        self._warned = False
        self._network_buffers = self._find_buffers()
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
        """The device of the weights."""
        tensors = itertools.chain(self.weights.parameters(), self.weights.buffers())
        return next((value.device for value in tensors), torch.device("cpu"))

    def sample(self, num_samples: int, *, memory_limit: int = _STATISTICS_MEMORY) -> Samples:
        """Draws weights ``{name: [num_samples, *shape]}``; the draws may be used repeatedly.

        In evaluation mode, draws of a network with batch norm include batch-norm statistics of
        their own, see ``with_statistics``; ``posterior.weights.sample`` gives the weights alone.

        Args:
            num_samples: The number of draws.
            memory_limit: Bytes that activations may take while statistics are computed.
        """
        checks.whole("num_samples", num_samples, 1, "draw at least one")
        samples = Samples.of(self.weights.sample(num_samples))
        return samples if self.training else self.with_statistics(samples, memory_limit)

    def keep_reference(self, inputs: Inputs | None) -> None:
        """Keeps a copy of training inputs, from which batch norm gets statistics for each draw.

        The running statistics of batch norm are averages over the weight draws of all training
        steps, and no single draw follows them. In evaluation every draw therefore uses the means
        and variances that its own activations have on these inputs. ``fit`` keeps such inputs by
        itself: call this function after a training loop of your own. Some hundred examples, drawn
        at random from the training data, are enough.

        The inputs are part of the posterior's state: ``bbh.save`` writes them to the file. If they
        must not leave the machine, call ``keep_reference(None)`` first.

        Args:
            inputs: A batch of inputs: a tensor, or a tuple, dictionary or packed sequence. None
                removes the inputs that are kept.
        """
        self.reference.keep([] if inputs is None else [move(inputs, self.device)])

    def needs_reference(self) -> bool:
        """Whether draws need batch-norm statistics, which are computed from reference inputs.

        They do not if the network has no layer with running statistics in training mode, if there
        is one weight setting only (MAP), if draws bring statistics along (an ensemble), or if they
        vary from example to example in training (dropout masks).
        """
        return bool(self._draw_statistics.names) and self.weights.statistics_differ

    def with_statistics(
        self,
        samples: Samples,
        memory_limit: int = _STATISTICS_MEMORY,
        *,
        batches: Iterable[Inputs] | None = None,
    ) -> Samples:
        """The same draws with batch-norm statistics of their own, from the reference inputs.

        Draws that need no statistics, or have them already, are returned as they are. So are all
        draws if there are no reference inputs; a warning says so once.

        Args:
            samples: The draws.
            memory_limit: Bytes that activations may take. Reference inputs that take more with a
                single draw are divided, and the statistics are averages over the parts.
            batches: Inputs to compute statistics from, instead of the reference inputs. Draws then
                get new statistics in any case.
        """
        names = self._draw_statistics.names
        if batches is None:
            if not self.needs_reference() or names <= samples.keys():
                return samples
            batches = self.reference.batches()
            if not batches:
                self._warn_of_shared_statistics()
                return samples
        training = self.training
        if training:
            self.eval()
        try:
            execution = self.execution or Automatic()
            statistics = self._draw_statistics.of(samples, batches, execution, memory_limit)
        finally:
            if training:
                self.train()
        return samples.with_buffers(statistics)

    def forward(
        self,
        inputs: Inputs,
        samples: Mapping[str, Tensor],
        *,
        inputs_per_draw: bool = False,
        execution: Execution | None = None,
    ) -> Float[Tensor, "S B *event"]:
        """The network's outputs for every draw.

        Args:
            inputs: A batch, on the posterior's device.
            samples: The draws from ``sample``, or weights from elsewhere, ``{name: [S, *shape]}``.
                They may include buffers of the network by name, one for each draw.
            inputs_per_draw: Whether ``inputs`` is one tensor [S, B, …] with separate examples for
                each draw.
            execution: How to put the draws through the network in this call. None takes the
                posterior's own ``execution``, or else the fastest that the network supports.
        """
        draws = Samples.of(samples)
        if missing := self.weights.shapes.keys() - draws.keys():
            raise ValueError(f"the weight samples lack {sorted(missing)}.")
        for name, shape in self.weights.shapes.items():
            if draws.shape(name) != shape:
                raise ValueError(
                    f"the weight samples have {name!r} in the shape {list(draws[name].shape)}; "
                    f"this network needs [draws, {', '.join(map(str, shape))}]. Are they another "
                    "posterior's?"
                )
        chosen = execution or self.execution or Automatic()
        try:
            return chosen.run(self.runnable, inputs, draws, inputs_per_draw)
        except (RuntimeError, ValueError) as error:
            explain_failure(error, inputs, next(iter(draws.values())).dtype)
            raise

    def train(self, mode: bool = True) -> "Posterior[P]":
        """Sets the mode of the template too, except for modules that are always on or off."""
        super().train(mode)
        self.network.train(mode)
        for name in self._always_off:
            # Not eval(), which would reach into modules that are not always off.
            self.network.get_submodule(name).training = False
        for name in self.always_on:
            self.network.get_submodule(name).train(True)
        return self

    def replace_weights(self, weights: WeightDistribution) -> None:
        """Puts another distribution over the same parameters in place of the present one."""
        if weights.shapes != self.weights.shapes:
            raise ValueError("the new distribution covers other parameters than the present one.")
        weights.check_prior(self.prior)
        self.weights = weights
        self._network_buffers = self._find_buffers()
        self.train(self.training)

    def with_prior(self, prior: Prior) -> "Posterior[P]":
        """A copy that starts where this posterior is, to be trained under another prior.

        With ``bbh.priors.DiagonalNormal.of(posterior)`` it learns further data without forgetting
        those that this posterior was trained on.
        """
        check_parts(self.likelihood, prior)
        prior = prior.for_shapes(self.weights.shapes)
        self.weights.check_prior(prior)
        other = copy.deepcopy(self)
        other.prior = prior
        return other

    @contextmanager
    def entered_at(self, name: str) -> Generator[None]:
        """Within the block, the posterior takes the inputs of this module of the network.

        Its outputs are those of the module, for every draw.
        """
        whole, module = self.runnable, self.network.get_submodule(name)
        # The module belongs to the network, which is what draws and constants are named after.
        call = Call(self.network, lambda _, inputs: call_network(module, inputs))
        self.runnable = self._runnable(call, module)
        try:
            yield
        finally:
            self.runnable = whole

    def statistics(self) -> list[Tensor]:
        """The network's buffers, in whichever table they are kept.

        A forward pass in training mode may write to them (batch-norm statistics).
        """
        return [table[name] for table, name in self._network_buffers]

    def running_statistics(self) -> list[Tensor]:
        """The running means and variances that normalisation layers update in training."""
        names = self._draw_statistics.names
        return [table[name] for table, name in self._network_buffers if name in names]

    def __repr__(self) -> str:
        """What it was made of, one part in a line; its modules would take a page."""
        trained = sum(one.numel() for one in self.parameters() if one.requires_grad)
        parts: dict[str, Any] = {
            "network": f"{type(self.network).__name__}, {size(self.weights.shapes):,} weights",
            "weights": f"{type(self.weights).__name__}, {trained:,} trained parameters",
            "prior": self.prior,
            "likelihood": self.likelihood,
        }
        if self.recipe is not None:
            parts = {"method": self.recipe.method} | parts | self.recipe.shown()
        lines = [f"  {name}: {value}" for name, value in parts.items()]
        return "\n".join([f"{type(self).__name__}(", *lines, ")"])

    def _find_buffers(self) -> list[tuple[TensorTable, str]]:
        """Where each buffer of the network is kept: moving the posterior makes new tensors."""
        tables = [module for module in self.modules() if isinstance(module, TensorTable)]
        own = dict(self.network.named_buffers()).keys()
        return [(table, name) for table in tables for name in table if name in own]

    def _warn_of_shared_statistics(self) -> None:
        if not self._warned:
            logger.warning(
                "there are no reference inputs for batch norm: all weight draws share the running "
                "statistics of training, which no single draw follows, so predictions can be far "
                "off. Call posterior.keep_reference(inputs) with some hundred training inputs, or "
                "pass samples=bbh.refresh_batch_norm(posterior, train_loader). bbh.fit keeps "
                "inputs by itself unless batch_norm_examples=0; files of bbh 0.1 have none."
            )
        self._warned = True

    def _runnable(self, call: Call, network: nn.Module) -> Runnable:
        prepare = partial(self._prepare, call)
        return Runnable(prepare, network, self.weights.shapes, self.statistics)

    def _prepare(self, call: Call) -> NetworkFunction:
        """The network as a function of inputs and one weight setting."""
        same = self.frozen() | self.constants()
        constants = {f"network.{name}": value for name, value in same.items()}
        padding = self.padding()

        def outputs(inputs: Inputs, draw: Params) -> Tensor:
            values = constants | {f"network.{name}": value for name, value in draw.items()}
            for name, row in padding.items():
                index = cast(int, self.network.get_submodule(name.rpartition(".")[0]).padding_idx)
                table = draw[name]
                # Joined from pieces: an index tensor would be copied from the host to the device
                # for every draw.
                kept = torch.cat([table[:index], row.unsqueeze(0), table[index + 1 :]])
                values[f"network.{name}"] = kept
            return call.run(values, inputs)

        return outputs


def _copied(values: Mapping[str, Tensor], names: Collection[str]) -> Params | None:
    """Copies on the CPU; None if the network has no values, as on the meta device."""
    chosen = {name: value.detach() for name, value in values.items() if name in names}
    if any(value.is_meta for value in chosen.values()):
        return None
    return {name: value.to("cpu", copy=True) for name, value in chosen.items()}


def check_parts(likelihood: object, prior: object) -> None:
    """Raises if the likelihood is not a ``Likelihood`` or the prior is not a ``Prior``."""
    example = "pass an object of bbh.likelihoods, e.g. Categorical()"
    checks.instance("likelihood", likelihood, Likelihood, example)
    checks.instance("prior", prior, Prior, "pass an object of bbh.priors, e.g. Normal(1.0)")
