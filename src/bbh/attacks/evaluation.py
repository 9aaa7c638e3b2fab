"""Evaluates a posterior under attack: accuracy, uncertainty, and whether attacks are detected."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from jaxtyping import Int
from torch import Tensor

from bbh import metrics
from bbh.attacks.base import Attack
from bbh.attacks.fgsm import FGSM
from bbh.attacks.norms import L2, LInf
from bbh.batches import Inputs
from bbh.likelihoods import Categorical
from bbh.posterior import Posterior
from bbh.prediction.predicting import predict


@dataclass(frozen=True)
class Robustness:
    """Quality of the predictions for attacked inputs; all values are means over the inputs.

    Attributes:
        epsilon: The size of the perturbation that was allowed.
        accuracy: Share of correct predictions.
        normalised_entropy: Predictive entropy as a share of its largest value, log C.
        mutual_information: How much the weight draws disagree, in nats.
        auroc_entropy: How often an attacked input has a higher entropy than a clean one; 0.5 is
            chance.
        auroc_mutual_information: How often an attacked input has a higher mutual information than
            a clean one; 0.5 is chance.
        linf: True size of the perturbation in L∞, its largest change.
        l2: True size of the perturbation in L2, its length.
    """

    epsilon: float
    accuracy: float
    normalised_entropy: float
    mutual_information: float
    auroc_entropy: float
    auroc_mutual_information: float
    linf: float
    l2: float


def robustness(
    posterior: Posterior[Any],
    inputs: Inputs,
    targets: Int[Tensor, " B"],
    epsilons: Iterable[float],
    attack: Attack | None = None,
    *,
    source: Posterior[Any] | None = None,
    num_samples: int = 100,
    samples: Mapping[str, Tensor] | None = None,
    attack_samples: Mapping[str, Tensor] | None = None,
) -> list[Robustness]:
    """Accuracy and uncertainty under attacks of several sizes, one row for each size.

    The attack uses the same weight draws for all sizes. Predictions use other draws, which are the
    same for all sizes and for the clean inputs.

    Args:
        posterior: The classifier whose predictions are evaluated.
        inputs: Clean inputs, in the units of ``epsilons``.
        targets: The classes of the inputs.
        epsilons: Sizes of the perturbation; 0 stands for the clean inputs.
        attack: The attack; by default ``FGSM()``.
        source: The posterior that the inputs are attacked on, by default ``posterior`` itself. With
            another one this is a black-box transfer attack. The attack's ``preprocess`` is used for
            both.
        num_samples: The number of weight draws for predictions; the attack has its own number.
        samples: Draws for predictions, instead of new ones.
        attack_samples: Draws for the attack, instead of new ones.
    """
    attack = attack or FGSM()
    epsilons = [float(epsilon) for epsilon in epsilons]
    for judged in (posterior, source or posterior):
        if not isinstance(judged.likelihood, Categorical):
            raise TypeError(
                "accuracy and entropy are those of classes, so the likelihood must be Categorical; "
                f"it is {type(judged.likelihood).__name__}. Call the attack itself and judge "
                "bbh.predict(posterior, attacked.inputs) by what fits."
            )
    if targets.dim() != 1:
        raise ValueError(f"one class per input is needed; targets have {list(targets.shape)}.")
    attacked = attack.sweep(source or posterior, inputs, targets, epsilons, samples=attack_samples)

    def pieces() -> Iterator[Tensor]:
        for images in (inputs, *(one.inputs for one in attacked)):
            images = images.to(posterior.device)
            yield images if attack.preprocess is None else attack.preprocess(images)

    # A single call predicts everything, so that all predictions use the same draws.
    predictive = predict(posterior, pieces(), num_samples, samples=samples)
    parts = zip(
        predictive.mean.split(len(inputs)),
        predictive.entropy.split(len(inputs)),
        predictive.mutual_information.split(len(inputs)),
        strict=True,
    )
    _, clean_entropy, clean_information = next(parts)
    rows: list[Robustness] = []
    for one, (probs, entropy, information) in zip(attacked, parts, strict=True):
        row = Robustness(
            epsilon=one.epsilon,
            accuracy=metrics.accuracy(probs, targets.cpu()),
            normalised_entropy=1 - metrics.entropy_auc(entropy, probs.shape[1]),
            mutual_information=float(information.mean()),
            auroc_entropy=metrics.auroc(clean_entropy, entropy),
            auroc_mutual_information=metrics.auroc(clean_information, information),
            linf=float(one.size(LInf()).mean()),
            l2=float(one.size(L2()).mean()),
        )
        rows.append(row)
    return rows
