"""Standard normal numbers for all weights: on a CPU torch makes them with one core only."""

import functools
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

# Numbers of one seed: half a millisecond's work. Fixed, so that the number of threads, which is
# the machine's, does not change the numbers.
PART = 2**17


def standard_normal(shape: Sequence[int], like: Tensor) -> Tensor:
    """Independent draws of N(0, 1) with the type and device of ``like``.

    On a CPU several threads fill parts, each from a seed that torch's own generator gives:
    ``torch.manual_seed`` decides them all.
    """
    numbers = torch.empty(tuple(shape), dtype=like.dtype, device=like.device)
    if numbers.device.type != "cpu" or numbers.numel() <= PART:
        return numbers.normal_()
    parts = numbers.view(-1).split(PART)
    seeds = torch.randint(2**62, (len(parts),)).tolist()
    # Threads begin in torch's default mode, where these numbers could not be written to.
    inference = torch.is_inference_mode_enabled()

    def fill(part: Tensor, seed: int) -> None:
        with torch.inference_mode(inference):
            part.normal_(generator=torch.Generator().manual_seed(seed))

    list(_threads(torch.get_num_threads()).map(fill, parts, seeds))
    return numbers


@functools.cache
def _threads(number: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(number, thread_name_prefix="bbh-normal")


if hasattr(os, "register_at_fork"):
    # Threads do not survive a fork.
    os.register_at_fork(after_in_child=_threads.cache_clear)
