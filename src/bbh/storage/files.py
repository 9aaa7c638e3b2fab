"""save and load: tensors as safetensors, everything else as JSON in the same file.

Nothing in a file is executed. The file names the method and its arguments. Loading checks that the
network passed by the user has the saved structure, calls the method on it, and loads the tensors.
"""

import hashlib
import json
import platform
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from bbh import checks
from bbh.execution import Execution
from bbh.files import atomic_path
from bbh.generators import skipped_initialization
from bbh.methods import registered
from bbh.network import Forward, call_network, describe_modules, with_trainable
from bbh.posterior import Posterior
from bbh.storage.bounded import BoundedBuilding
from bbh.storage.descriptions import TENSOR_PREFIX, Custom, decode, encode
from bbh.version import __version__

FORMAT = 1
# Where a posterior's state has the digests of its frozen parameters.
_DIGESTS = "frozen.digests"


class StorageError(ValueError):
    """A file cannot be loaded; the message says what differs and what to do."""


def save(posterior: Posterior[Any], path: str | Path, *, with_frozen: bool = False) -> None:
    """Writes a posterior to one file, atomically.

    Frozen parameters are the network's, which ``load`` is given. The file has digests of them
    instead, so that a posterior over a small part of a large network has a small file, and is not
    put onto another network by mistake.

    Args:
        posterior: A posterior that was made by one of ``bbh.methods``.
        path: The file to write, usually called ``….safetensors``.
        with_frozen: Whether to write the frozen parameters too: where the network's own weights are
            kept nowhere else.
    """
    instead = "pass a posterior of bbh.methods; torch.save(network.state_dict(), …) saves a network"
    checks.instance("posterior", posterior, Posterior, instead)
    if posterior.recipe is None:
        raise StorageError(
            "this posterior was assembled by hand, so there is no method to load it with. Save "
            "its state_dict() instead."
        )
    if names := _not_finite(posterior):
        raise StorageError(f"these weights are not finite: {', '.join(names[:5])}.")
    described: dict[str, Tensor] = {}
    arguments = posterior.recipe.arguments
    description: dict[str, Any] = {
        "format": FORMAT,
        "method": posterior.recipe.method,
        "arguments": {name: encode(one, described) for name, one in arguments.items()},
        "prior": encode(posterior.prior, described),
        "likelihood": encode(posterior.likelihood, described),
        "custom_forward": posterior.call_with is not call_network,
        "network": fingerprint(posterior.network),
        "shapes": {name: list(shape) for name, shape in posterior.weights.shapes.items()},
        "versions": {
            "bbh": __version__,
            "torch": str(torch.__version__),
            "python": platform.python_version(),
        },
        "seed": torch.initial_seed(),
    }
    frozen = posterior.frozen() if with_frozen else {}
    everything = posterior.state_dict() | described
    everything |= {_constant(name): value for name, value in frozen.items()}
    tensors = {name: value.detach().cpu().contiguous() for name, value in everything.items()}
    description["digest"] = _digest(description, tensors)
    with atomic_path(Path(path)) as temporary:
        try:
            save_file(tensors, temporary, metadata={"bbh": json.dumps(description)})
        except SafetensorError as error:
            raise OSError(f"{error}") from error


def load(
    path: str | Path,
    network: nn.Module,
    *,
    forward: Forward | None = None,
    execution: Execution | None = None,
    **custom: Any,
) -> Posterior[Any]:
    """Reads a posterior from a file.

    Args:
        path: A file that ``save`` wrote.
        network: A network with the structure and names of the one that was given to the method. Its
            frozen weights must be the same too, unless the file has them; other weights do not
            matter.
        forward: The function that calls the network, if the method was given one. It is code, so
            it is not in the file.
        execution: How to put draws through the network, as in the methods.
        custom: Objects of your own classes that the posterior was made with, by argument name,
            e.g. ``prior=bbh.priors.Sampled(…)``.

    Raises:
        StorageError: The file is damaged, of a newer format, or for another network.
    """
    path = Path(path)
    try:
        description, tensors = _read(path)
        return _loaded(path, description, tensors, network, forward, execution, custom)
    except (StorageError, FileNotFoundError):
        raise
    # A description that was tampered with may raise any error.
    except Exception as error:
        problem = str(error).partition("\n")[0] or type(error).__name__
        raise StorageError(
            f"{path} describes no posterior that can be loaded: {problem}"
        ) from error


def _loaded(
    path: Path,
    description: dict[str, Any],
    everything: dict[str, Tensor],
    network: nn.Module,
    forward: Forward | None,
    execution: Execution | None,
    custom: dict[str, Any],
) -> Posterior[Any]:
    described = {name: v for name, v in everything.items() if name.startswith(TENSOR_PREFIX)}
    tensors = {name: v for name, v in everything.items() if name not in described}
    if differences := _differences(description["network"], fingerprint(network)):
        shown = "; ".join(differences[:5]) + ("; …" if len(differences) > 5 else "")
        raise StorageError(f"{path} was saved for another network: {shown}.")
    if description["custom_forward"] and forward is None:
        raise StorageError(f"{path} was made with a forward= adapter: pass it to load as well.")
    encoded = description["arguments"] | {
        name: description[name] for name in ("prior", "likelihood")
    }
    try:
        arguments = {name: decode(one, described) for name, one in encoded.items()} | custom
    except ValueError as error:
        raise StorageError(
            f"{path} was written by bbh {description['versions']['bbh']}, and bbh {__version__} "
            f"does not understand it: {error}"
        ) from error
    for name, value in arguments.items():
        if isinstance(value, Custom):
            raise StorageError(
                f"{path} was made with {name}= of your own class {value.name}, which a file "
                f"cannot hold: pass load(…, {name}=…)."
            )
    network = _frozen_alike(network, description["network"]["trainable"])
    method = registered()[description["method"]]
    # What the user's network has is in memory already.
    given = (*everything.values(), *network.parameters(), *network.buffers())
    num_values = sum(value.numel() for value in given)
    # Loading must not change the user's random state. Only that of the CPU has to be kept, since
    # the method draws all random numbers there.
    with (
        torch.random.fork_rng(devices=[]),
        BoundedBuilding(num_values),
        skipped_initialization(),
    ):
        posterior: Posterior[Any] = method(
            network, forward=forward, execution=execution, **arguments
        )
    _put_frozen(path, posterior, tensors)
    if problem := _other_base(posterior, tensors):
        raise StorageError(
            f"{path} was saved for another network: {problem}. "
            "(A file has frozen parameters only if save was called with with_frozen=True.)"
        )
    try:
        posterior.load_state_dict(tensors, assign=True)
    except RuntimeError as error:
        raise StorageError(f"{path} does not fit the posterior it describes: {error}") from error
    if names := _not_finite(posterior):
        raise StorageError(f"{path} has weights that are not finite: {', '.join(names[:5])}.")
    posterior.reference.batches()  # raises if their description is damaged
    posterior.start = None  # the weights of the network given here are any
    return posterior.eval()


def _constant(name: str) -> str:
    """The name that a frozen parameter has in a file: beside the network's buffers, as in 0.1."""
    return f"constants.{name.replace('.', '/')}"


def _put_frozen(path: Path, posterior: Posterior[Any], tensors: dict[str, Tensor]) -> None:
    """Takes frozen parameters out of a file's tensors if it has them, and into the posterior.

    Without them the network's own are used, in the type to which the posterior was converted.
    """
    own = posterior.frozen()
    built = posterior.state_dict() | {_constant(name): value for name, value in own.items()}
    converted = _check_types(path, built, tensors)
    stored = {name: tensors.pop(_constant(name), None) for name in own}
    for name, value in own.items():
        found = stored[name]
        if found is None:
            found = value.to(converted.get(value.dtype, value.dtype))
        elif found.shape != value.shape:
            raise StorageError(
                f"{path} has {name} in the shape {list(found.shape)}, where {list(value.shape)} "
                "belongs."
            )
        posterior.frozen.replace({name: found})
    if own and _DIGESTS not in tensors and None not in stored.values():  # a file of 0.1
        tensors[_DIGESTS] = posterior.frozen.digests()


def _other_base(posterior: Posterior[Any], tensors: dict[str, Tensor]) -> str | None:
    """What is different about the frozen parameters; None if they are those of the file."""
    digests = tensors.get(_DIGESTS)
    if digests is None or not len(posterior.frozen):
        return None
    return posterior.frozen.difference(digests)


def _check_types(
    path: Path, built: dict[str, Tensor], stored: dict[str, Tensor]
) -> dict[torch.dtype, torch.dtype]:
    """Raises unless all tensors have the types they were built with, or were all converted alike.

    A posterior may have been converted to double precision as a whole, but not in parts.

    Returns:
        The type that each type was converted to.
    """
    found: dict[torch.dtype, torch.dtype] = {}
    for name in built.keys() & stored.keys():
        before, now = built[name].dtype, stored[name].dtype
        same_kind = before == now or (before.is_floating_point and now.is_floating_point)
        if not same_kind or found.setdefault(before, now) != now:
            raise StorageError(f"{path} has {name} as {now}, where {before} belongs.")
    return found


def _not_finite(posterior: Posterior[Any]) -> list[str]:
    """Names of weights that are not finite; buffers of a network may be so by design (a mask)."""
    given = {id(value) for value in posterior.statistics()}
    return [
        name
        for name, value in posterior.state_dict(keep_vars=True).items()
        if id(value) not in given
        and not name.startswith("reference.")
        and not value.isfinite().all()
    ]


def _frozen_alike(network: nn.Module, trainable: dict[str, str]) -> nn.Module:
    """The network with the same parameters frozen as when the posterior was saved."""
    parameters = dict(network.named_parameters())
    if all(value.requires_grad == (name in trainable) for name, value in parameters.items()):
        return network
    return with_trainable(network, trainable)  # the user's network must not change


def fingerprint(network: nn.Module) -> dict[str, dict[str, str]]:
    """The structure of a network: classes and settings of modules, shapes and types of tensors."""
    tensors = {**dict(network.named_parameters()), **dict(network.named_buffers())}
    return {
        "modules": describe_modules(network),
        "tensors": {name: f"{list(value.shape)} {value.dtype}" for name, value in tensors.items()},
        "trainable": {
            name: "yes" for name, value in network.named_parameters() if value.requires_grad
        },
    }


def _differences(saved: dict[str, dict[str, str]], given: dict[str, dict[str, str]]) -> list[str]:
    found: list[str] = []
    for kind, word in (("tensors", "tensor"), ("modules", "module")):
        then, now = saved[kind], given[kind]
        found += [f"{word} {name!r} is missing" for name in then if name not in now]
        found += [f"{word} {name!r} is new" for name in now if name not in then]
        found += [
            f"{word} {name!r} was {then[name]}, is {now[name]}"
            for name in then
            if name in now and then[name] != now[name]
        ]
    return found


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    if not path.exists():
        raise FileNotFoundError(f"there is no file {path}.")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            # Cloned, because the tensors of safetensors are the file mapped into memory: if the
            # file were written to later, the posterior would change or the program crash.
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise StorageError(
            f"{path} is truncated or no safetensors file ({error}). Copy or save it again."
        ) from error
    try:
        description: dict[str, Any] = json.loads(metadata["bbh"])
        written, version = description["format"], description["versions"]["bbh"]
        newer = written > FORMAT
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise StorageError(f"{path} holds tensors but no posterior of bbh.") from error
    if newer:
        raise StorageError(
            f"{path} has format {written}, written by bbh {version}; bbh {__version__} reads up "
            f"to format {FORMAT}. Upgrade: pip install -U bayes-by-hypernet."
        )
    digest = description.pop("digest", None)
    if digest != _digest(description, tensors):
        raise StorageError(
            f"{path} was changed after it was saved: its contents do not match their checksum."
        )
    method = str(description.get("method"))
    if method not in registered():
        raise StorageError(
            f"{path} names an unknown method {method!r}. If it is your own, import the module that "
            "registers it first."
        )
    return description, tensors


def _digest(description: dict[str, Any], tensors: dict[str, Tensor]) -> str:
    """SHA-256 of the description and of every tensor's name, type, shape and bytes."""
    digest = hashlib.sha256(json.dumps(description, sort_keys=True).encode())
    for name in sorted(tensors):
        value = tensors[name].contiguous()
        digest.update(f"{name} {value.dtype} {list(value.shape)}".encode())
        digest.update(value.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
