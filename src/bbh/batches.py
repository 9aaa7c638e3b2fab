"""Batches in the forms that loaders yield, and functions to cut, count and move their inputs."""

from collections.abc import Mapping, Sequence, Sized
from functools import partial
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence
from torch.utils import _pytree as pytree  # pyright: ignore[reportPrivateUsage]
from torch.utils.data import (
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
)

from bbh import checks

# A tensor, or a tuple, list or dictionary of tensors with examples along the first axis.
Inputs = Any
_TARGET_KEYS = ("targets", "labels")


class Batch(NamedTuple):
    """One batch: inputs, targets and optionally a weight for every example or every target."""

    inputs: Inputs
    targets: Tensor
    weights: Tensor | None = None


def as_batch(batch: Any) -> Batch:
    """Makes a ``Batch`` from a pair, a triple with weights, or a dictionary.

    A dictionary, or another mapping such as a tokenizer's ``BatchEncoding``, has its targets under
    ``targets`` or ``labels`` and may have weights of examples or of single targets under
    ``weights``; everything else in it is an input.

    >>> as_batch({"ids": torch.zeros(2, 3), "labels": torch.ones(2)}).inputs.keys()
    dict_keys(['ids'])
    """
    if isinstance(batch, Batch):
        return batch
    if isinstance(batch, Mapping):
        known = cast(Mapping[str, Any], batch)
        key = next((key for key in _TARGET_KEYS if key in known), None)
        if key is None:
            raise ValueError(
                f"a dictionary batch needs its targets under one of {_TARGET_KEYS}; "
                f"it has {sorted(known)}."
            )
        targets, weights = _collated(key, known[key]), known.get("weights")
        return Batch(inputs_of(known), targets, as_tensors(weights))
    if isinstance(batch, tuple | list):
        parts = cast(tuple[Any, ...], tuple(batch))
        if len(parts) in (2, 3):
            return Batch(*map(as_tensors, parts))
    raise ValueError(
        "a batch is (inputs, targets), (inputs, targets, weights) or a dictionary with 'targets' "
        f"or 'labels'; got {type(batch).__name__}. Several inputs go in as one tuple: "
        "((first, second), targets)."
    )


def joined_weights(targets: Sequence[Tensor], weights: Sequence[Tensor | None]) -> Tensor | None:
    """The weights of several batches in one tensor; None if none of them has any.

    >>> joined_weights([torch.zeros(2), torch.zeros(1)], [None, torch.tensor([3.0])])
    tensor([1., 1., 3.])

    Args:
        targets: The targets of every batch.
        weights: Their weights, one per example or one per target; None stands for ones.
    """
    given = [one for one in weights if one is not None]
    if not given:
        return None
    each_target = any(one.dim() > 1 for one in given)
    joined: list[Tensor] = []
    for known, factors in zip(targets, weights, strict=True):
        if factors is None:
            factors = torch.ones(len(known))
        if each_target:
            factors = factors.view(*factors.shape, *[1] * (known.dim() - factors.dim()))
            factors = factors.expand(known.shape)
        joined.append(factors.to(torch.get_default_dtype()))
    return torch.cat(joined)


def inputs_of(batch: Any) -> Inputs:
    """A batch's inputs, whether or not it has targets."""
    if isinstance(batch, PackedSequence):  # a named tuple, but a single input
        return batch
    if isinstance(batch, Mapping):
        known = cast(Mapping[str, Any], batch)
        keys = (key for key in known if key not in (*_TARGET_KEYS, "weights"))
        return {key: _collated(key, known[key]) for key in keys}
    if isinstance(batch, tuple | list):
        parts = cast(tuple[Any, ...], batch)
        return as_tensors(parts[0])
    return as_tensors(batch)


def as_tensors(data: Any) -> Any:
    """The data with every NumPy array in it as a tensor; all else is returned as it is.

    Arrays of float64, NumPy's usual type, get torch's default type (float32 unless it was set), and
    integers get int64. Arrays are copied, so that a loader may use them again.

    >>> as_tensors((np.zeros(2), np.zeros(2, np.int32)))
    (tensor([0., 0.]), tensor([0, 0]))
    """
    if isinstance(data, Tensor):
        return data
    if isinstance(data, np.ndarray):
        array = cast(NDArray[Any], data)
        if array.dtype.kind not in "fiubc":
            raise TypeError(
                f"a NumPy array of {array.dtype} cannot be turned into a tensor: make it numbers."
            )
        if array.dtype == np.float64:
            return torch.from_numpy(array.copy()).to(torch.get_default_dtype())
        return torch.from_numpy(
            array.astype(np.int64) if array.dtype.kind in "iu" else array.copy()
        )
    if type(data) is dict:
        return {key: as_tensors(value) for key, value in cast(dict[str, Any], data).items()}
    if type(data) in (tuple, list):
        return type(data)(as_tensors(value) for value in data)
    return data


def _collated(key: str, value: Any) -> Any:
    """One entry of a dictionary as tensors; raises for lists of numbers or of strings."""
    first = value
    while type(first) is list and first:
        first = cast(list[Any], first)[0]
    if type(value) is list and isinstance(first, str):
        raise TypeError(
            f"{key!r} of a dictionary batch is a list of strings, which no network takes: leave it "
            "out of the batch."
        )
    if type(value) is list and isinstance(first, int | float):
        raise TypeError(
            f"{key!r} of a dictionary batch is a list of numbers, not a tensor: call the tokenizer "
            "with padding=True and return_tensors='pt', or give the DataLoader a collate_fn that "
            "makes tensors, such as DataCollatorWithPadding."
        )
    return as_tensors(value)


def check_loader(name: str, loader: object) -> None:
    """Raises for tensors, arrays, datasets and other things that are no loader of batches."""
    parts = cast(list[object], loader) if isinstance(loader, tuple | list) else []
    arrays = bool(parts) and all(isinstance(part, Tensor | np.ndarray) for part in parts)
    dataset = isinstance(loader, Dataset) and not hasattr(loader, "__iter__")
    if dataset or arrays or isinstance(loader, Tensor | np.ndarray | Mapping | str):
        inside = "dataset" if dataset else "TensorDataset(inputs, targets)"
        raise TypeError(
            f"{name} is a {type(loader).__name__}, not a loader of batches. Make one with "
            f"torch.utils.data.DataLoader({inside}, batch_size=32)."
        )
    if not hasattr(loader, "__iter__") and not hasattr(loader, "__getitem__"):
        raise TypeError(f"{name}={checks.shown(loader)}: pass a loader of batches.")


def move(inputs: Inputs, device: torch.device) -> Inputs:
    """The same inputs on another device."""
    if isinstance(inputs, Tensor):
        return inputs.to(device)
    if isinstance(inputs, Batch) and isinstance(inputs.inputs, Tensor):
        # As Fabric does it: copies of pinned memory to a GPU need not be waited for.
        there = partial(Tensor.to, device=device, non_blocking=device.type == "cuda")
        weights = None if inputs.weights is None else there(inputs.weights)
        return Batch(there(inputs.inputs), there(inputs.targets), weights)
    # Imported only when needed: of all dependencies except torch, Fabric takes longest to import.
    from lightning_fabric.utilities.apply_func import move_data_to_device

    return move_data_to_device(inputs, device)


def first_tensor(inputs: Inputs) -> Tensor | None:
    """The first tensor among the inputs; None if there is none, so that nothing can be cut."""
    if isinstance(inputs, Tensor):
        return inputs
    if isinstance(inputs, Mapping):
        inputs = tuple(cast(Mapping[str, Any], inputs).values())
    if type(inputs) not in (tuple, list):
        return None
    found = (first_tensor(value) for value in inputs)
    return next((tensor for tensor in found if tensor is not None), None)


def count(inputs: Inputs) -> int:
    """The number of examples; inputs that ``cut`` cannot divide count as one."""
    tensor = first_tensor(inputs)
    return 1 if tensor is None or not tensor.dim() else len(tensor)


def cut(inputs: Inputs, first: int, last: int) -> Inputs:
    """Examples from ``first`` up to ``last`` of every tensor."""
    if isinstance(inputs, Tensor):
        return inputs[first:last]
    if isinstance(inputs, Mapping):
        known = cast(Mapping[str, Any], inputs)
        return {key: cut(value, first, last) for key, value in known.items()}
    if type(inputs) in (tuple, list):
        return type(inputs)(cut(value, first, last) for value in inputs)
    # Other objects (a packed sequence, a graph) cannot be cut and are passed on whole.
    return inputs


def divisible(inputs: Inputs) -> bool:
    """Whether ``cut`` gives some of the examples: all tensors have one row for each example."""
    number = count(inputs)

    def fits(part: Inputs) -> bool:
        if isinstance(part, Tensor):
            return part.dim() > 0 and len(part) == number
        if isinstance(part, Mapping):
            return all(map(fits, cast(Mapping[str, Any], part).values()))
        if type(part) in (tuple, list):
            return all(map(fits, part))
        return part is None or isinstance(part, bool | int | float | str)

    return first_tensor(inputs) is not None and fits(inputs)


def explain_failure(error: Exception, inputs: Inputs, dtype: torch.dtype) -> None:
    """Raises what to do, if torch's own message about inputs would not help.

    Args:
        error: What the network raised.
        inputs: What it was called with.
        dtype: The type of its weights.
    """
    if str(error).startswith("Expected more than 1 value per channel"):
        raise ValueError(
            "batch norm needs two examples in a batch to train on, and this one has a single one. "
            "If it is the last of the loader, use DataLoader(…, drop_last=True) or another batch "
            f"size ({error})."
        ) from error
    leaves: list[Any] = pytree.tree_leaves(inputs)
    kinds = {one.dtype for one in leaves if isinstance(one, Tensor)}
    floating = {one for one in kinds if one.is_floating_point}
    # Whole numbers beside others may be meant as such: words, say.
    wrong = (floating or kinds) - {dtype}
    if not isinstance(error, RuntimeError) or "type" not in str(error) or not wrong:
        return
    found = ", ".join(sorted(map(str, wrong)))
    raise TypeError(
        f"the inputs are {found} and the weights {dtype}: give the inputs with .to({dtype}), or "
        f"make the posterior of a network in the inputs' type ({error})."
    ) from error


def num_bytes(inputs: Inputs) -> int:
    """The bytes that all tensors take together.

    >>> num_bytes((torch.zeros(3), {"more": torch.zeros(2)}))
    20
    """
    leaves: list[Any] = pytree.tree_leaves(inputs)
    return sum(leaf.nbytes for leaf in leaves if isinstance(leaf, Tensor))


def copied(inputs: Inputs) -> Inputs:
    """The same inputs with copies of all tensors, without gradients.

    Parts of a batch that are kept must be copied: a loader may use the batch's memory again, and a
    part that was cut from it would keep the whole batch in memory.
    """
    return pytree.tree_map_only(Tensor, lambda leaf: leaf.detach().clone(), inputs)


def num_data_of(loader: object) -> int:
    """Size N of a loader's training set; raises if the loader does not determine it."""
    remedy = "Pass num_data=, the number of training examples."
    if not isinstance(loader, DataLoader):
        raise ValueError(
            f"the size of the training set cannot be read off a {type(loader).__name__}. {remedy}"
        )
    known = cast("DataLoader[Any]", loader)
    if isinstance(known.dataset, IterableDataset) or not isinstance(known.dataset, Sized):
        raise ValueError(f"the loader's dataset has no length. {remedy}")
    if known.batch_size is None and known.batch_sampler is None:
        raise ValueError(f"with batch_size=None the dataset's items are whole batches. {remedy}")
    # A batch sampler passed by the user replaces the default one and may leave examples out.
    sampler: object = known.sampler if known.batch_size is not None else known.batch_sampler
    if isinstance(sampler, SubsetRandomSampler):
        return len(sampler)
    if not isinstance(sampler, SequentialSampler | RandomSampler | DistributedSampler):
        raise ValueError(
            f"the loader's {type(sampler).__name__} may not visit every example. {remedy}"
        )
    return len(known.dataset)


def length_of(loader: object) -> int | None:
    """The number of batches that a loader yields; None if it does not say."""
    try:
        return len(loader) if isinstance(loader, Sized) else None
    except TypeError:  # a DataLoader over an iterable dataset has __len__, but it raises
        return None
