"""Batch-norm statistics that belong to a weight draw."""

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
    """Weight draws with batch-norm statistics of their own, re-estimated on training data.

    Running statistics collected in training are an average over the weight draws of all steps;
    no single draw's activations follow them. This takes fresh draws, runs the loader through each
    and gives the draws with their own statistics (plain averages over the batches), to be used as

    ``predict(posterior, inputs, samples=refresh_batch_norm(posterior, train_loader))``

    Args:
        posterior: Unchanged.
        loader: Batches of training data; targets are ignored.
        num_samples: Draws; a distribution with fewer different ones gives each once.
    """
    training = posterior.training
    posterior.train()
    layers = {
        name: module
        for name, module in posterior.network.named_modules()
        # One that stays in evaluation mode keeps the statistics it came with.
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
            # Draw by draw, since each writes to statistics of its own.
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
    """One set of statistics per draw, as after reset_running_stats()."""
    device = posterior.device
    blank: dict[str, Tensor] = {}
    for prefix, layer in layers.items():
        for leaf, value in layer.named_buffers(recurse=False):
            fill = torch.ones if leaf == "running_var" else torch.zeros
            name = f"{prefix}.{leaf}".lstrip(".")
            blank[name] = fill(num_samples, *value.shape, dtype=value.dtype, device=device)
    return blank
