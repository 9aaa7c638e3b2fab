"""This library's contenders, trained by the same steps that ``bbh.fit`` takes."""

import sys
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from bbh import generators, methods
from bbh.likelihoods import Categorical
from bbh.posterior import Posterior
from bbh.prediction import predict
from bbh.training import EagerSteps, RecordedSteps, TrainingStep, make_adam, make_steps
from bbh.version import __version__
from bbh_studies.bench.contenders import OWN, Contender
from bbh_studies.bench.problems import Problem

Make = Callable[[nn.Module], Posterior[Any]]


def _of(method: Callable[..., Posterior[Any]], **settings: Any) -> Make:
    return lambda network: method(network, Categorical(), **settings)


class OwnMethod(NamedTuple):
    """One method of this library.

    Attributes:
        method: What it competes as.
        make: Makes the posterior.
        likelihood_samples: How many draws see the batch; None for the method's own number.
    """

    method: str
    make: Make
    likelihood_samples: int | None = None


_HYPERNET = _of(methods.bayes_by_hypernet)
_SINGLE = _of(methods.bayes_by_hypernet, generator=generators.Single())
# Trunks as narrow as those of the paper's toy problem.
_NARROW = _of(methods.bayes_by_hypernet, generator=generators.Single(hidden=(16, 32, 64)))
# Method → its short name in tables; a method that is not listed here keeps its own name.
_SHORT_NAMES = {
    "maximum_a_posteriori": "map",
    "deep_ensemble": "ensemble",
    "bayes_by_backprop": "bbb",
    "mc_dropout": "dropout",
    "multiplicative_normalizing_flows": "mnf",
    "bayes_by_hypernet": "bbh",
}


def _all_methods() -> dict[str, OwnMethod]:
    """Every registered method, and Bayes by Hypernet with other generators and fewer draws."""
    registered = methods.registered()
    names = {name: _SHORT_NAMES.get(name, name) for name in (*_SHORT_NAMES, *registered)}
    plain = {short: OwnMethod(short, _of(registered[name])) for name, short in names.items()}
    # In the paper one draw of a step sees the batch; by default five of ten do.
    return plain | {
        "bbh-one-draw": OwnMethod("bbh", _HYPERNET, likelihood_samples=1),
        "bbh-single": OwnMethod("bbh", _SINGLE),
        "bbh-single-one-draw": OwnMethod("bbh", _SINGLE, likelihood_samples=1),
        "bbh-single-narrow": OwnMethod("bbh", _NARROW),
        "bbh-single-narrow-one-draw": OwnMethod("bbh", _NARROW, likelihood_samples=1),
        "bbh-sliced": OwnMethod(
            "bbh", _of(methods.bayes_by_hypernet, generator=generators.Sliced())
        ),
    }


OWN_METHODS = _all_methods()


def own_contenders(problem: Problem, names: Iterable[str] = ()) -> list[Contender]:
    """All registered methods, and Bayes by Hypernet with each kind of generator.

    Args:
        problem: The problem to build contenders for.
        names: Names of the contenders to build; empty for all.
    """
    return [own_contender(name, OWN_METHODS[name], problem) for name in names or OWN_METHODS]


def own_contender(name: str, own: OwnMethod, problem: Problem) -> Contender:
    """A contender for one method; whatever the method does not set is at its default."""
    posterior = own.make(problem.make_network())
    steps = problem_steps(posterior, problem, likelihood_samples=own.likelihood_samples)
    return Contender(
        name=name,
        library=f"{OWN} {__version__}",
        method=own.method,
        step=lambda: steps.take((problem.inputs, problem.targets), 1.0),
        predict=lambda batch_size: own_prediction(posterior, problem, batch_size),
        parameters=num_parameters(posterior),
    )


def own_prediction(
    posterior: Posterior[Any],
    problem: Problem,
    batch_size: int | None = None,
    precision: torch.dtype = torch.float32,
) -> Tensor:
    """Averaged probabilities, computed as users compute them: by ``bbh.predict``."""
    draws = problem.sizes.draws
    return predict(
        posterior, problem.test_inputs, draws, batch_size=batch_size, precision=precision
    ).mean


def problem_steps(
    posterior: Posterior[Any],
    problem: Problem,
    *,
    cuda_graph: bool = True,
    factored: bool = True,
    moments: torch.dtype = torch.float32,
    likelihood_samples: int | None = None,
    precision: str = "32-true",
) -> EagerSteps | RecordedSteps:
    """The training steps that ``bbh.fit`` makes, or the same with some savings switched off.

    Args:
        posterior: The posterior to train; it is moved to the problem's device.
        problem: Gives N and the device.
        cuda_graph: Record a step and replay it, on a CUDA device.
        factored: Update output layers from factors of their gradient.
        moments: Precision of the optimizer's moments of those layers.
        likelihood_samples: Draws that see the batch; None for the method's own number.
        precision: Fabric's name of the precision.
    """
    fabric = Fabric(
        accelerator=problem.device.type,
        devices=1,
        precision=precision,  # pyright: ignore[reportArgumentType]
    )
    posterior.to(problem.device)
    parameters = [one for one in posterior.parameters() if one.requires_grad]
    if factored:
        optimizer = make_adam(posterior.weights, parameters, moments=moments, lr=1e-4)
    else:
        optimizer = torch.optim.Adam(parameters, lr=1e-4, fused=True)
    step = TrainingStep(
        posterior,
        optimizer,
        num_data=problem.num_data,
        likelihood_samples=likelihood_samples,
        fabric=fabric,
    )
    return make_steps(step, cuda_graph=cuda_graph)


@contextmanager
def plain_kernels() -> Generator[None]:
    """While this is open, plain PyTorch code runs in place of every Triton kernel."""
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
    """How many numbers of a module are trained."""
    return sum(one.numel() for one in module.parameters() if one.requires_grad)
