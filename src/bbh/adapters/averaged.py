"""Wraps a posterior as an ordinary network, for the attacks of other libraries."""

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
    """A classifier's averaged prediction as an ordinary network: log 1/S Σ_s softmax(f(x, w_s)).

    The outputs are normalised logits, and their cross-entropy is the loss that ``bbh.attacks``
    increases. The draws are fixed. In the backward pass the network is run again for one draw after
    the other, so that activations of only one draw are in memory.

    Args:
        posterior: A classifier. It is always used in evaluation mode, and it is not a submodule, so
            that this network's ``to`` and ``train`` do not affect it.
        num_samples: The number of weight draws.
        samples: Draws to use instead of new ones.
        preprocess: A function from this network's inputs to those of the posterior's network.
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
        """The logarithm of the averaged class probabilities."""
        posterior: Posterior[Any] = self.__dict__["_posterior"]
        classes = posterior.likelihood.class_dim
        inputs = inputs if self._preprocess is None else self._preprocess(inputs)

        def log_probs(values: Tensor, draw: Samples) -> Tensor:
            with evaluation_mode(posterior):
                return posterior(values, draw).squeeze(0).log_softmax(classes)

        each: list[Tensor] = []
        # The same seed in every call, so that dropout layers that stay on do not change the result.
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
    """A ``foolbox.PyTorchModel`` of the averaged prediction, for any of Foolbox's attacks.

    Foolbox is installed with the extra ``foolbox`` of this package.

    Args:
        posterior: A classifier.
        num_samples: The number of weight draws, which are the same for every call.
        bounds: Range of valid inputs.
        samples: Draws to use instead of new ones.
        preprocess: A function from the attacked inputs to the network's inputs.
    """
    try:
        foolbox = importlib.import_module("foolbox")
    except ImportError as error:
        raise ImportError(
            "Foolbox is not installed: pip install 'bayes-by-hypernet[foolbox]'."
        ) from error
    network = AveragedNetwork(posterior, num_samples, samples=samples, preprocess=preprocess)
    return foolbox.PyTorchModel(network, bounds=bounds, device=posterior.device)
