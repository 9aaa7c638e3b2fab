"""Batch-norm statistics for weight draws from a whole loader of training data."""

from collections.abc import Iterable
from typing import Any

import torch

from bbh.batches import inputs_of
from bbh.posterior import Posterior
from bbh.prediction.draws import evaluation_mode
from bbh.prediction.predicting import MEMORY_LIMIT
from bbh.samples import Samples


@torch.no_grad()
def refresh_batch_norm(
    posterior: Posterior[Any], loader: Iterable[Any], num_samples: int = 100
) -> Samples:
    """Draws weights and estimates batch-norm statistics for each draw on training data.

    Draws of a posterior that ``fit`` trained have batch-norm statistics of their own already, from
    the inputs that the posterior keeps (``posterior.keep_reference``). This function estimates them
    from all the data of a loader: they are more exact, and available where no inputs are kept. The
    statistics are averages over the batches, weighted by their number of examples. Use the draws as

    ``predict(posterior, inputs, samples=refresh_batch_norm(posterior, train_loader))``

    Args:
        posterior: The posterior to draw from; it is not changed.
        loader: Batches of training data; targets are ignored.
        num_samples: The number of draws. A distribution with fewer different draws (MAP, an
            ensemble) gives each once.
    """
    if not posterior.running_statistics():
        raise ValueError(
            "the network has no batch-norm layer with running statistics to refresh (layers put "
            "into eval() keep theirs)."
        )
    with evaluation_mode(posterior):
        samples = Samples.of(posterior.weights.sample(posterior.weights.num_useful(num_samples)))
        batches = (inputs_of(batch) for batch in loader)
        return posterior.with_statistics(samples, MEMORY_LIMIT // 4, batches=batches)
