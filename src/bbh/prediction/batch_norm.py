"""Batch-norm statistics for each weight draw."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from bbh.batches import inputs_of, move
from bbh.execution import Loop
from bbh.network.layers import BATCH_NORMS
from bbh.posterior import Posterior
from bbh.samples import Params, Samples


@torch.no_grad()
def refresh_batch_norm(
    posterior: Posterior[Any], loader: Iterable[Any], num_samples: int = 100
) -> Samples:
    """Draws weights and estimates batch-norm statistics for each draw on training data.

    The running statistics from training are an average over the weight draws of all steps, and the
    activations of a single draw do not follow them. This function takes new draws, runs the loader
    through each, and returns the draws with their own statistics (plain averages over the
    batches). Use them as

    ``predict(posterior, inputs, samples=refresh_batch_norm(posterior, train_loader))``

    Args:
        posterior: The posterior to draw from; it is not changed.
        loader: Batches of training data; targets are ignored.
        num_samples: The number of draws. A distribution with fewer different draws (MAP, an
            ensemble) gives each once.
    """
    training = posterior.training
    posterior.train()
    layers = {
        name: module
        for name, module in posterior.network.named_modules()
        # A layer that is always in evaluation mode keeps the statistics it came with.
        if isinstance(module, BATCH_NORMS) and module.track_running_stats and module.training
    }
    posterior.train(training)
    if not layers:
        raise ValueError(
            "the network has no batch-norm layer with running statistics to refresh (layers put "
            "into eval() keep theirs)."
        )
    momenta = {name: layer.momentum for name, layer in layers.items()}
    posterior.eval()
    try:
        total = posterior.weights.num_useful(num_samples)
        samples = posterior.sample(total).with_buffers(_blank_statistics(posterior, layers, total))
        for layer in layers.values():
            layer.train()
            layer.momentum = None  # a plain average instead of an exponential one
        batches = 0
        for batch in loader:
            # A loop over draws, since each pass writes to the statistics of its own draw.
            posterior(move(inputs_of(batch), posterior.device), samples, execution=Loop())
            batches += 1
    finally:
        for name, layer in layers.items():
            layer.momentum = momenta[name]
        posterior.train(training)
    if not batches:
        raise ValueError("the loader is empty: there is nothing to estimate statistics from.")
    return samples


def _blank_statistics(
    posterior: Posterior[Any], layers: Mapping[str, nn.Module], num_samples: int
) -> Params:
    """One set of initial statistics for each draw, with the values of reset_running_stats()."""
    device = posterior.device
    blank: dict[str, Tensor] = {}
    for prefix, layer in layers.items():
        for leaf, value in layer.named_buffers(recurse=False):
            fill = torch.ones if leaf == "running_var" else torch.zeros
            name = f"{prefix}.{leaf}".lstrip(".")
            blank[name] = fill(num_samples, *value.shape, dtype=value.dtype, device=device)
    return blank
