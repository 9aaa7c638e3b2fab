"""Exports a posterior's averaged prediction as a program that runs without this library.

It is an adapter: it turns a posterior into an object of ``torch.export`` or ONNX, uses nothing but
what any user of the library has, and nothing in the library needs it.
"""

import io
import logging
import warnings
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree  # pyright: ignore[reportPrivateUsage]

from bbh.batches import Inputs, as_tensors, count, divisible, inputs_of, move
from bbh.files import atomic_path
from bbh.posterior import Posterior
from bbh.prediction.draws import evaluation_mode
from bbh.predictive import ClassPredictive, Predictive, RegressionPredictive
from bbh.samples import Samples, TensorTable

# What a program returns of a predictive distribution. Of a regression it also returns the Gaussian
# of every draw, from which intervals follow.
_CLASSES = ("mean", "entropy", "mutual_information")
_REGRESSION = ("mean", "epistemic_std", "aleatoric_std", "total_std", "locs", "scales")
_MOST_IN_ONE_FILE = 2**30


class ExportedPosterior:
    """A posterior's averaged prediction with fixed weight draws, as a program.

    The program takes what the network takes for inputs: one tensor, or one tuple or dictionary.

    Attributes:
        program: The ``torch.export.ExportedProgram``; its outputs are a dictionary of tensors.
        samples: The weight draws that it uses: ``bbh.predict(posterior, inputs, samples=samples)``
            gives what the program gives.
        input_names: Names of the inputs in an ONNX file.
        output_names: Names of the outputs.
    """

    def __init__(
        self,
        program: torch.export.ExportedProgram,
        samples: Samples,
        input_names: tuple[str, ...],
        output_names: tuple[str, ...],
    ):
        self.program = program
        self.samples = samples
        self.input_names = input_names
        self.output_names = output_names
        self._module = program.module()

    def __call__(self, inputs: Inputs) -> dict[str, Tensor]:
        """Runs the program on any number of examples."""
        given = _as_inputs(inputs)
        if isinstance(given, Mapping):  # a program knows the order of its inputs too
            given = {name: cast(Mapping[str, Any], given)[name] for name in self.input_names}
        with torch.no_grad():
            return self._module(given)

    def __repr__(self) -> str:
        names = f"{', '.join(self.input_names)} -> {', '.join(self.output_names)}"
        return f"ExportedPosterior({names}; {self.samples.num_samples} weight draws)"

    def save(self, path: str | Path) -> None:
        """Writes the program to a file, usually called ``….pt2``, for ``torch.export.load``."""
        if Path(path).suffix == ".onnx":
            raise ValueError(f"{path}: save() writes a torch.export program; use save_onnx().")
        # Into memory first: PyTorch's writer aborts the whole program if the disk is full.
        written = io.BytesIO()
        torch.export.save(self.program, written)
        with atomic_path(Path(path)) as temporary:
            temporary.write_bytes(written.getbuffer())

    def save_onnx(self, path: str | Path) -> None:
        """Writes the program as ONNX.

        More than 1 GB of weights go to a second file beside it, which ONNX requires above 2 GB.
        Only then an interruption can leave half a file.

        The converter is installed with the extra ``export`` of this package.
        """
        try:
            import onnxscript  # noqa: F401  # pyright: ignore[reportUnusedImport]
        except ImportError as error:
            raise ImportError(
                "ONNX is not installed: pip install 'bayes-by-hypernet[export]'."
            ) from error
        with _quiet():
            made = torch.onnx.export(
                self.program,
                input_names=self.input_names,
                dynamic_shapes=[{0: "batch"} for _ in self.input_names],
                dynamo=True,
                verbose=False,
            )
            assert made is not None
            _name_outputs(made.model.graph, self.output_names)
            if sum(value.nbytes for value in self.program.state_dict.values()) > _MOST_IN_ONE_FILE:
                made.save(str(path), external_data=True)
                return
            with atomic_path(Path(path)) as temporary:
                made.save(str(temporary))


def export(
    posterior: Posterior[Any],
    example: Inputs,
    num_samples: int = 30,
    *,
    samples: Mapping[str, Tensor] | None = None,
) -> ExportedPosterior:
    """A program that predicts with fixed weight draws, for any number of examples.

    It returns ``mean``, ``entropy`` and ``mutual_information`` for classes, and for regressions
    ``mean``, ``epistemic_std``, ``aleatoric_std``, ``total_std`` and the means and noise of all
    draws (``locs`` and ``scales``), in the units of the targets. The program holds every draw of
    the network's weights and runs them one after the other, so file and running time grow with
    ``num_samples``.

    >>> import bbh
    >>> posterior = bbh.methods.bayes_by_backprop(nn.Linear(2, 3), bbh.likelihoods.Categorical())
    >>> exported = export(posterior, torch.zeros(4, 2), num_samples=5)
    >>> {name: list(value.shape) for name, value in exported(torch.zeros(7, 2)).items()}
    {'mean': [7, 3], 'entropy': [7], 'mutual_information': [7]}

    Args:
        posterior: A trained posterior; it is not changed.
        example: Some inputs as for ``bbh.predict``: a tensor, or a tuple or dictionary of tensors.
            Only the first axis, the examples, may have another length later.
        num_samples: The number of weight draws. A distribution with fewer different draws (MAP, an
            ensemble) uses each once.
        samples: Draws to use instead of new ones.
    """
    if posterior.always_on:
        raise ValueError(
            f"the network's dropout layers ({', '.join(posterior.always_on[:3])}) draw new masks "
            "in every call, so there are no fixed draws to export. Make the posterior with "
            "mc_dropout(rate=…), whose masks belong to the weights."
        )
    inputs = move(_as_inputs(example), posterior.device)
    _check_example(inputs)
    if count(inputs) == 1:
        # torch.export takes an axis of length one for one that always has this length.
        inputs = pytree.tree_map(lambda one: torch.cat([one, one]), inputs)  # pyright: ignore[reportUnknownLambdaType]
    with evaluation_mode(posterior), torch.no_grad():
        drawn = (
            posterior.sample(posterior.weights.num_useful(num_samples))
            if samples is None
            else posterior.with_statistics(Samples.of(samples))
        ).values_only()
        if wrong := [name for name, value in drawn.items() if not value.isfinite().all()]:
            raise ValueError(f"these weights are not finite: {', '.join(wrong[:5])}.")
        network = _AveragedPrediction(posterior, drawn)
        outputs = tuple(network(inputs))
        batch = torch.export.Dim("batch")
        shapes = pytree.tree_map(lambda _: {0: batch}, inputs)  # pyright: ignore[reportUnknownLambdaType]
        try:
            program = torch.export.export(
                network, (inputs,), dynamic_shapes=(shapes,), strict=False
            )
        # Tracing runs the network's own code, and may fail in as many ways.
        except Exception as error:
            problem = str(error).strip().partition("\n")[0]
            raise ValueError(
                f"{type(posterior.network).__name__} cannot be traced for any number of examples: "
                f"{problem} Common causes are a number of examples that is written into the "
                "network's code, and decisions that depend on the values of tensors."
            ) from error
    return ExportedPosterior(program, drawn, _names(inputs), outputs)


def _name_outputs(graph: Any, names: tuple[str, ...]) -> None:
    """Names the outputs; what has one of these names on the way to them gets another.

    The converter could name them too, but would leave two values of the name ``mean`` in a network
    that computes a mean, and no runtime reads such a file.
    """
    for node in graph:
        for value in node.outputs:
            if value.name in names:
                value.name = f"inner_{value.name}"
    for value, name in zip(graph.outputs, names, strict=True):
        value.name = name


@contextmanager
def _quiet() -> Generator[None]:
    """Without what PyTorch's converter says about itself, and about packages it could also use."""
    about = logging.getLogger("torch.onnx._internal.exporter._registration")
    level = about.level
    about.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            warnings.simplefilter("ignore", DeprecationWarning)
            # The same name for the first axis of every input is what is wanted.
            warnings.filterwarnings("ignore", "# The axis name", UserWarning)
            yield
    finally:
        about.setLevel(level)


class _AveragedPrediction(nn.Module):
    """The averaged prediction with fixed draws, as a function of tensors that can be traced."""

    def __init__(self, posterior: Posterior[Any], samples: Samples):
        super().__init__()
        # Tensors that are the same in all draws (point estimates) are in the program once.
        same = {name for name, value in samples.items() if bool((value == value[:1]).all())}
        self.draws = _table({n: value for n, value in samples.items() if n not in same})
        self.shared = _table({name: samples[name][0] for name in same})
        # These are registered for the program to list what is in them.
        self.constants = posterior.constants
        self.padding = posterior.padding
        self.likelihood = posterior.likelihood
        self.num_samples = samples.num_samples
        # Not a submodule: the distribution that draws come from is not part of the program.
        self.__dict__["_prepare"] = posterior.runnable.prepare

    def forward(self, inputs: Inputs) -> dict[str, Tensor]:
        """The parts of the predictive distribution."""
        call = self.__dict__["_prepare"]()
        # One draw after the other, which can be traced for every network.
        draws, shared = self.draws(), self.shared()
        outputs = torch.stack(
            [
                call(inputs, shared | {name: value[index] for name, value in draws.items()})
                for index in range(self.num_samples)
            ]
        )
        likelihood = self.likelihood
        predictive = likelihood.predictive(
            likelihood.sums(outputs),
            self.num_samples,
            outputs if likelihood.keeps_outputs else None,
        )
        return {name: getattr(predictive, name) for name in _parts(predictive)}


def _table(values: Mapping[str, Tensor]) -> TensorTable:
    # Copies, since draws may be views of one another, which the file format does not know.
    return TensorTable(
        {name: value.detach().clone().contiguous() for name, value in values.items()},
        trainable=False,
    )


def _parts(predictive: Predictive) -> tuple[str, ...]:
    if isinstance(predictive, ClassPredictive):
        return _CLASSES
    return _REGRESSION if isinstance(predictive, RegressionPredictive) else ("mean",)


def _as_inputs(given: Any) -> Inputs:
    """Inputs as for ``bbh.predict``; a dictionary may have labels, which are left out."""
    return inputs_of(given) if isinstance(given, Mapping) else as_tensors(given)


def _names(inputs: Inputs) -> tuple[str, ...]:
    if isinstance(inputs, Mapping):
        return tuple(cast(Mapping[str, Any], inputs))
    if isinstance(inputs, Tensor):
        return ("inputs",)
    return tuple(f"inputs_{index}" for index in range(len(inputs)))


def _check_example(inputs: Inputs) -> None:
    """Raises unless the inputs are tensors with as many rows each, in at most one collection."""
    parts: list[Any] = [inputs]
    if isinstance(inputs, Mapping):
        parts = list(cast(Mapping[str, Any], inputs).values())
    elif type(inputs) in (tuple, list):
        parts = list(inputs)
    fine = all(isinstance(one, Tensor) for one in parts) and divisible(inputs)
    if not fine or not count(inputs):
        raise ValueError(
            "the example must be a tensor, or a tuple or dictionary of tensors, with the same "
            "number of examples along the first axis of each and at least one; got "
            f"{type(inputs).__name__}."
        )
