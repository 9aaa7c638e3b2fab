"""What attacks do to a posterior: accuracy, uncertainty, and whether it notices."""

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
    """Predictions for attacked inputs, in means over them.

    Attributes:
        epsilon: The size the attack was allowed.
        accuracy: Share of right predictions.
        normalised_entropy: Predictive entropy as a share of the largest, log C.
        mutual_information: How much the draws disagree, in nats.
        auroc_entropy: How often an attacked input has a higher entropy than a clean one; 0.5 is
            chance.
        auroc_mutual_information: The same by mutual information.
        linf: True size of the perturbation, its largest change.
        l2: True size of the perturbation, its length.
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
    """Accuracy and uncertainty under attacks of growing size, one row for each.

    The attack has the same draws for all sizes. The draws that predict are drawn apart from those,
    and are the same for all sizes and for the clean inputs.

    Args:
        posterior: Whose predictions are judged; a classifier.
        inputs: Clean inputs, in the units of ``epsilons``.
        targets: Their classes.
        epsilons: Sizes of the perturbation; 0 is the clean inputs.
        attack: By default ``FGSM()``.
        source: The posterior that the attack sees, by default the one that is judged; another
            makes it a black-box transfer. The attack's ``preprocess`` serves both.
        num_samples: Weight draws that predict; the attack has its own number.
        samples: Draws that predict, instead of fresh ones.
        attack_samples: Draws for the attack, instead of fresh ones.
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

    # One prediction for all, so that all see the same draws.
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
