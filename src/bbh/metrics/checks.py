"""Checks of the inputs of all metrics: they raise `ValueError` or return the tensor ready to use.

Results are at least float32, so that rounding to half precision cannot change a mean or a bin.
Arguments have no annotated shapes, because these functions themselves check the shapes.
"""

import torch
from torch import Tensor

# Tolerance for sums of probabilities: large enough for means of float32 softmaxes over many draws
# and classes, small enough to detect logits, unnormalised scores and log-probabilities.
TOLERANCE = 1e-3


def numbers(
    name: str, values: Tensor, num_dims: int | None = None, allow_infinite: bool = False
) -> Tensor:
    """Checks real values: not empty, no NaN or (unless allowed) infinity, `num_dims` axes."""
    if num_dims is not None and values.ndim != num_dims:
        raise ValueError(
            f"{name}: expected {num_dims} axes, got shape {list(values.shape)}; "
            "reshape or squeeze it first"
        )
    if values.numel() == 0:
        raise ValueError(
            f"{name}: empty, shape {list(values.shape)}; a metric needs at least one entry"
        )
    if values.is_complex():
        raise ValueError(f"{name}: complex values; pass real numbers")
    bad = values.isnan() if allow_infinite else ~values.isfinite()
    if bad.any():
        kind = "NaN" if allow_infinite else "NaN or infinite"
        raise ValueError(
            f"{name}: {int(bad.sum())} of {values.numel()} values are {kind}; "
            "find where the model diverged, or drop these entries"
        )
    return values.to(torch.promote_types(values.dtype, torch.float32))


def probabilities(name: str, probs: Tensor, num_dims: int | None = None) -> Tensor:
    """Checks probabilities over the last axis, and clips values that rounding put above 1."""
    if probs.ndim == 0:
        raise ValueError(f"{name}: expected classes on the last axis, got a scalar")
    probs = numbers(name, probs, num_dims)
    if probs.min() < 0 or probs.max() > 1 + TOLERANCE:
        raise ValueError(
            f"{name}: values in [{probs.min():.4g}, {probs.max():.4g}], outside [0, 1]; "
            "pass probabilities, for logits softmax(logits, dim=-1)"
        )
    excess = (probs.sum(dim=-1) - 1).abs().max()
    if excess > TOLERANCE:
        raise ValueError(
            f"{name}: the last axis does not sum to 1 (off by up to {excess:.4g}); put the classes "
            "last and normalise, for logits softmax(logits, dim=-1) in at least float32"
        )
    return probs.clamp(max=1)


def labelled(probs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Checks class probabilities [B, C] and their integer targets [B]."""
    probs = probabilities("probs", probs, num_dims=2)
    if targets.shape != probs.shape[:1]:
        raise ValueError(
            f"targets: expected one class per row of probs, shape [{probs.shape[0]}], "
            f"got {list(targets.shape)}; for one-hot targets pass targets.argmax(-1)"
        )
    if targets.is_floating_point() or targets.is_complex() or targets.dtype == torch.bool:
        raise ValueError(f"targets: expected integer classes, got {targets.dtype}; pass .long()")
    num_classes = probs.shape[1]
    if targets.min() < 0 or targets.max() >= num_classes:
        raise ValueError(
            f"targets: classes from {int(targets.min())} to {int(targets.max())}, but probs has "
            f"{num_classes} columns; number the classes 0 to {num_classes - 1}"
        )
    return probs, targets.long()


def entropies(values: Tensor, max_entropy: float) -> Tensor:
    """Checks entropies [B] in nats, and clips rounding errors outside [0, `max_entropy`]."""
    values = numbers("entropies", values, num_dims=1)
    if values.min() < -TOLERANCE or values.max() > max_entropy * (1 + TOLERANCE):
        raise ValueError(
            f"entropies: values in [{values.min():.4g}, {values.max():.4g}], outside [0, "
            f"{max_entropy:.4g}] = [0, log num_classes]; pass nats and the right num_classes"
        )
    return values.clamp(0, max_entropy)


def same_shape(name: str, values: Tensor, reference_name: str, reference: Tensor) -> None:
    """Checks equal shapes: broadcasting [B] against [B, 1] would silently compare all pairs."""
    if values.shape != reference.shape:
        raise ValueError(
            f"{name}: shape {list(values.shape)} differs from {list(reference.shape)} of "
            f"{reference_name}; reshape one to the other"
        )


def at_least(name: str, value: int, smallest: int) -> int:
    """Checks that a count is at least `smallest`."""
    if value < smallest:
        raise ValueError(f"{name}: expected at least {smallest}, got {value}")
    return value
