"""Batches from scores of single examples: the best ones, or a sample that prefers them."""

import torch
from jaxtyping import Int
from torch import Tensor

from bbh import checks
from bbh.decisions.predictions import Array
from bbh.decisions.predictions import scores as checked


def top(scores: Array, number: int) -> Int[Tensor, " number"]:
    """The places of the largest scores, largest first.

    A batch chosen in this way may be many times the same: if one example is worth asking for, so
    are those that are like it. ``power_sample`` and ``batch_bald`` avoid this.

    Args:
        scores: One per example of the pool.
        number: How many to choose.

    Examples:
        >>> top(torch.tensor([0.1, 0.9, 0.5]), 2)
        tensor([1, 2])
    """
    known = checked("scores", scores)
    check_number(number, len(known))
    return known.sort(descending=True, stable=True).indices[:number]


def power_sample(scores: Array, number: int, *, power: float = 1.0) -> Int[Tensor, " number"]:
    """A random batch without repeats, each next example with a probability ∝ score^power.

    Kirsch et al. (2023), "Stochastic batch acquisition: a simple baseline for deep active
    learning": as cheap as ``top``, and the batch is more varied. Random numbers come from torch's
    generator.

    Args:
        scores: One per example of the pool, not negative. Examples with score 0 come last.
        number: How many to choose.
        power: 0 ignores the scores, large values approach ``top``.
    """
    known = checked("scores", scores)
    check_number(number, len(known))
    checks.number("power", power)
    if (known < 0).any():
        raise ValueError("scores: negative; a power of them is no probability. Shift them first.")
    # The largest of log weights plus Gumbel noise are a sample without repeats (Yellott, 1977).
    uniform = torch.rand(known.shape, dtype=known.dtype).clamp(min=torch.finfo(known.dtype).tiny)
    keys = power * known.clamp(min=torch.finfo(known.dtype).tiny).log() - (-uniform.log()).log()
    keys = torch.where(known > 0, keys, keys - 1e6) if power else keys
    return keys.sort(descending=True).indices[:number]


def check_number(number: int, available: int) -> None:
    """Raises unless the pool has so many examples."""
    checks.whole("number", number, 1, "choose at least one example")
    if number > available:
        raise ValueError(f"number={number}: the pool has {available} examples.")
