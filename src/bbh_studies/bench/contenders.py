"""What a library must offer to be compared: one training step, and one prediction.

An adapter of another library is a Python file with one function
``contenders(problem: Problem) -> list[Contender]``.
"""

import importlib.util
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bbh_studies.bench.problems import Problem
from bbh_studies.bench.timing import reason

OWN = "bbh"


@dataclass(frozen=True)
class Contender:
    """One method of one library on one problem.

    Attributes:
        name: Unique on its problem.
        library: Name and version of the library.
        method: What it competes as: map, ensemble, bbb, dropout, mnf or bbh.
        step: One training step on the problem's batch: objective with its KL term, gradient, Adam.
        predict: Averaged class probabilities of the problem's test inputs. Its argument is the
            number of inputs per call; None leaves that to the library.
        parameters: How many numbers are trained.
        batch_sizes: Arguments to try for ``predict``; the fastest is used.
        note: What makes it differ from the others.
    """

    name: str
    library: str
    method: str
    step: Callable[[], object]
    predict: Callable[[int | None], Tensor]
    parameters: int
    batch_sizes: tuple[int | None, ...] = (None,)
    note: str = ""

    @property
    def is_peer(self) -> bool:
        """Whether another library made it."""
        return self.library.partition(" ")[0] != OWN


class Peers(NamedTuple):
    """Contenders of other libraries, and for libraries without any the reason."""

    contenders: list[Contender]
    failures: dict[str, str]


def load_peers(folder: Path | None, problem: Problem, names: Iterable[str] = ()) -> Peers:
    """Contenders of all adapters in a folder; one that fails is reported and stops no other.

    Args:
        folder: A folder with one Python file per library; None for no peers.
        problem: The problem to build contenders for.
        names: Names of the files to load; empty for all.
    """
    found: list[Contender] = []
    failures: dict[str, str] = {}
    chosen = set(names)
    for path in sorted(folder.glob("*.py")) if folder is not None else ():
        if path.stem.startswith("_") or (chosen and path.stem not in chosen):
            continue
        try:
            # Old libraries warn about newer ones, which does not matter here.
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found += _adapter(path)(problem)
        except Exception as error:
            failures[path.stem] = reason(error)
    return Peers(found, failures)


def _adapter(path: Path) -> Callable[[Problem], list[Contender]]:
    spec = importlib.util.spec_from_file_location(f"bbh_bench_peer_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no Python file.")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.contenders


def network_contender(
    name: str,
    library: str,
    problem: Problem,
    network: nn.Module,
    loss: Callable[[Tensor, Tensor], Tensor],
    *,
    method: str = "bbb",
    num_draws: int | None = None,
    note: str = "",
) -> Contender:
    """A contender made from a module that draws its weights anew in every pass.

    Args:
        name: Unique on its problem.
        library: Name and version of the library.
        problem: The problem to build the contender for.
        network: Maps inputs to logits.
        loss: Computes the loss from inputs and targets, including the KL.
        method: What it competes as.
        num_draws: Passes of a prediction; None takes the problem's number.
        note: What makes it differ from the others.
    """
    network = network.to(problem.device)
    parameters = list(network.parameters())
    optimizer = torch.optim.Adam(parameters, lr=1e-4, fused=True)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        loss(problem.inputs, problem.targets).backward()
        optimizer.step()

    def predict(batch_size: int | None) -> Tensor:
        draws = num_draws or problem.sizes.draws
        return average(network, problem.test_inputs, draws, batch_size)

    return Contender(
        name=name,
        library=library,
        method=method,
        step=step,
        predict=predict,
        # Some libraries have two parameters that share memory, which count once.
        parameters=sum({one.data_ptr(): one.numel() for one in parameters}.values()),
        batch_sizes=batch_sizes(problem),
        note=note,
    )


def batch_sizes(problem: Problem) -> tuple[int, ...]:
    """Batch sizes to try: all inputs at once, and few enough to fit in a cache."""
    return tuple(dict.fromkeys((problem.sizes.images, min(50, problem.sizes.images))))


def average(
    network: Callable[[Tensor], Tensor], inputs: Tensor, num_draws: int, batch_size: int | None
) -> Tensor:
    """Class probabilities averaged over calls of ``network``, each with its own weights."""
    means: list[Tensor] = []
    with torch.inference_mode():
        for piece in inputs.split(batch_size or len(inputs)):
            total = F.softmax(network(piece), -1)
            for _ in range(num_draws - 1):
                total += F.softmax(network(piece), -1)
            means.append(total / num_draws)
    return torch.cat(means)


def replace_layers(
    network: nn.Module,
    linear: Callable[[nn.Linear], nn.Module],
    convolution: Callable[[nn.Conv2d], nn.Module],
) -> nn.Module:
    """Replaces the layers of a network by those of a library, in place."""
    for name, child in list(network.named_children()):
        if isinstance(child, nn.Linear):
            setattr(network, name, linear(child))
        elif isinstance(child, nn.Conv2d):
            setattr(network, name, convolution(child))
        else:
            replace_layers(child, linear, convolution)
    return network


def check_prediction(probabilities: Tensor, problem: Problem) -> None:
    """Raises unless every input has class probabilities: fast but wrong does not count."""
    shape = tuple(probabilities.shape)
    if shape != (problem.sizes.images, 10):
        raise ValueError(f"a prediction has shape {shape}, not {(problem.sizes.images, 10)}.")
    sums = probabilities.sum(-1)
    if not torch.allclose(sums, torch.ones_like(sums), atol=1e-3):
        raise ValueError("predicted probabilities do not add up to one.")
