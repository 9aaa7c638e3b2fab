"""This library's contenders, trained by the very steps that ``bbh.fit`` takes."""

import sys
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from bbh import generators, methods
from bbh.generators.factored.adam import make_adam
from bbh.likelihoods import Categorical
from bbh.posterior import Posterior
from bbh.prediction.predicting import predict
from bbh.training.recorded import GraphStepper, can_record
from bbh.training.step import Objective, Stepper
from bbh.version import __version__
from bbh_studies.bench.contenders import OWN, Contender
from bbh_studies.bench.problems import Problem

Make = Callable[[nn.Module], Posterior[Any]]


def _of(method: Callable[..., Posterior[Any]], **settings: Any) -> Make:
    return lambda network: method(network, Categorical(), **settings)


class OwnMethod(NamedTuple):
    """One of ours.

    Attributes:
        method: What it competes as.
        make: Makes the posterior.
        likelihood_samples: Draws that see the batch; None for all.
    """

    method: str
    make: Make
    likelihood_samples: int | None = None


_HYPERNET = _of(methods.bayes_by_hypernet)
_SINGLE = _of(methods.bayes_by_hypernet, generator=generators.Single())
# Trunks as narrow as those of the default generator.
_NARROW = _of(methods.bayes_by_hypernet, generator=generators.Single(hidden=(16, 32, 64)))
# The paper lets one of five draws see the batch; by default all do.
OWN_METHODS: dict[str, OwnMethod] = {
    "map": OwnMethod("map", _of(methods.maximum_a_posteriori)),
    "ensemble": OwnMethod("ensemble", _of(methods.deep_ensemble)),
    "bbb": OwnMethod("bbb", _of(methods.bayes_by_backprop)),
    "dropout": OwnMethod("dropout", _of(methods.mc_dropout)),
    "mnf": OwnMethod("mnf", _of(methods.multiplicative_normalizing_flows)),
    "bbh": OwnMethod("bbh", _HYPERNET),
    "bbh-one-draw": OwnMethod("bbh", _HYPERNET, likelihood_samples=1),
    "bbh-single": OwnMethod("bbh", _SINGLE),
    "bbh-single-one-draw": OwnMethod("bbh", _SINGLE, likelihood_samples=1),
    "bbh-single-narrow": OwnMethod("bbh", _NARROW),
    "bbh-single-narrow-one-draw": OwnMethod("bbh", _NARROW, likelihood_samples=1),
    "bbh-sliced": OwnMethod("bbh", _of(methods.bayes_by_hypernet, generator=generators.Sliced())),
}


def own_contenders(problem: Problem, names: Iterable[str] = ()) -> list[Contender]:
    """The six methods, and Bayes by Hypernet with each kind of generator.

    Args:
        problem: What to build.
        names: Names of those wanted; empty for all.
    """
    return [own_contender(name, OWN_METHODS[name], problem) for name in names or OWN_METHODS]


def own_contender(name: str, own: OwnMethod, problem: Problem) -> Contender:
    """One posterior with everything else at its default."""
    posterior = own.make(problem.make_network())
    stepper = make_stepper(posterior, problem, likelihood_samples=own.likelihood_samples)
    return Contender(
        name=name,
        library=f"{OWN} {__version__}",
        method=own.method,
        step=lambda: stepper.step((problem.inputs, problem.targets), 1.0),
        predict=lambda batch_size: own_prediction(posterior, problem, batch_size),
        parameters=num_parameters(posterior),
    )


def own_prediction(
    posterior: Posterior[Any],
    problem: Problem,
    batch_size: int | None = None,
    precision: torch.dtype = torch.float32,
) -> Tensor:
    """Averaged probabilities, as users get them."""
    draws = problem.sizes.draws
    return predict(
        posterior, problem.test_inputs, draws, batch_size=batch_size, precision=precision
    ).mean


def make_stepper(
    posterior: Posterior[Any],
    problem: Problem,
    *,
    cuda_graph: bool = True,
    factored: bool = True,
    moments: torch.dtype = torch.float32,
    likelihood_samples: int | None = None,
) -> Stepper:
    """What ``bbh.fit`` makes, or the same without some of what it saves.

    Args:
        posterior: Moved to the problem's device.
        problem: Gives N and the device.
        cuda_graph: Record a step and replay it, on a CUDA device.
        factored: Update output layers from factors of their gradient.
        moments: Precision of the optimizer's moments of those layers.
        likelihood_samples: Draws that see the batch; None for all.
    """
    fabric = Fabric(accelerator=problem.device.type, devices=1)
    posterior.to(problem.device)
    parameters = [one for one in posterior.parameters() if one.requires_grad]
    if factored:
        optimizer = make_adam(posterior, parameters, moments=moments, lr=1e-4)
    else:
        optimizer = torch.optim.Adam(parameters, lr=1e-4, fused=True)
    objective, wrapped = fabric.setup(Objective(posterior), optimizer)
    posterior.train()
    settings = {
        "num_data": problem.num_data,
        "temperature": 1.0,
        "num_samples": None,
        "likelihood_samples": likelihood_samples,
    }
    graphs = cuda_graph and can_record(fabric, wrapped.optimizer)
    make = GraphStepper if graphs else Stepper
    return make(posterior, objective, wrapped, fabric, settings, None)


@contextmanager
def plain_kernels() -> Generator[None]:
    """Meanwhile every kernel is its plain PyTorch twin."""
    users: list[Any] = [
        module
        for name, module in list(sys.modules.items())
        if name.startswith("bbh.") and callable(vars(module).get("triton_available"))
    ]
    before = [module.triton_available for module in users]
    try:
        for module in users:
            module.triton_available = lambda: False
        yield
    finally:
        for module, available in zip(users, before, strict=True):
            module.triton_available = available


def num_parameters(module: nn.Module) -> int:
    """Trained numbers."""
    return sum(one.numel() for one in module.parameters() if one.requires_grad)
