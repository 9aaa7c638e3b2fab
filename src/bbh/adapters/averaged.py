"""Posteriors for other libraries' attacks."""

import importlib
import math
from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from bbh.attacks.base import Bounds
from bbh.attacks.loss import Preprocess
from bbh.likelihoods import Categorical
from bbh.posterior import Posterior
from bbh.prediction.draws import Draws, evaluation_mode, seeded
from bbh.prediction.predicting import MEMORY_LIMIT
from bbh.samples import Samples


class AveragedNetwork(nn.Module):
    """A classifier's averaged predictive as an ordinary network: log 1/S Σ_s softmax(f(x, w_s)).

    These outputs are logits like others, already normalised: their cross-entropy is the loss that
    ``bbh.attacks`` raises. The draws are fixed, and one after the other is passed again for the
    gradient, so that the memory of one suffices.

    Args:
        posterior: Always used in evaluation mode; not a submodule, so nothing moves or trains it.
        num_samples: Weight draws.
        samples: Draws to use instead of fresh ones.
        preprocess: From this network's inputs to the posterior's.
    """

    def __init__(
        self,
        posterior: Posterior[Any],
        num_samples: int = 100,
        *,
        samples: Mapping[str, Tensor] | None = None,
        preprocess: Preprocess | None = None,
    ):
        super().__init__()
        if not isinstance(posterior.likelihood, Categorical):
            raise TypeError(
                "log probabilities of classes need the likelihood Categorical; this posterior has "
                f"{type(posterior.likelihood).__name__}."
            )
        self.__dict__["_posterior"] = posterior
        self._preprocess = preprocess
        with evaluation_mode(posterior), torch.no_grad():
            self._draws = Draws(posterior, num_samples, samples, MEMORY_LIMIT // 4)
        self._seed = int(torch.randint(2**62, ()))
        self.eval()

    def forward(self, inputs: Tensor) -> Float[Tensor, "B C"]:
        """Log probabilities of the classes."""
        posterior: Posterior[Any] = self.__dict__["_posterior"]
        inputs = inputs if self._preprocess is None else self._preprocess(inputs)

        def log_probs(values: Tensor, draw: Samples) -> Tensor:
            with evaluation_mode(posterior):
                return posterior(values, draw).squeeze(0).log_softmax(-1)

        each: list[Tensor] = []
        # The same seed in every call: dropout layers of the network's own are one function too.
        with seeded(self._seed, posterior.device):
            for one in self._draws.at_most(1):
                each.append(checkpoint(log_probs, inputs, one.detach(), use_reentrant=False))
        return torch.stack(each).logsumexp(0) - math.log(len(each))


def foolbox_model(
    posterior: Posterior[Any],
    num_samples: int = 100,
    *,
    bounds: Bounds = (0.0, 1.0),
    samples: Mapping[str, Tensor] | None = None,
    preprocess: Preprocess | None = None,
) -> Any:
    """A ``foolbox.PyTorchModel`` of the averaged predictive, for any of Foolbox's attacks.

    Needs the extra ``foolbox``.

    Args:
        posterior: A classifier.
        num_samples: Weight draws, the same for every call.
        bounds: Range of valid inputs.
        samples: Draws to use instead of fresh ones.
        preprocess: From the attacked inputs to what the network takes.
    """
    try:
        foolbox = importlib.import_module("foolbox")
    except ImportError as error:
        raise ImportError(
            "Foolbox is not installed: pip install 'bayes-by-hypernet[foolbox]'."
        ) from error
    network = AveragedNetwork(posterior, num_samples, samples=samples, preprocess=preprocess)
    return foolbox.PyTorchModel(network, bounds=bounds, device=posterior.device)
