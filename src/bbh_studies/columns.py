"""All columns that tables can have, in their order."""

from collections.abc import Iterable

from bbh_studies.attack_columns import ATTACK_TITLES, attack_metrics
from bbh_studies.metric import Metric

_ALL = (
    Metric(
        "error",
        "Error",
        "%",
        "low",
        2,
        "Share of test images whose most probable class is wrong.",
        short="err",
        main=True,
    ),
    *(metric for attack in ATTACK_TITLES for metric in attack_metrics(attack)),
    Metric(
        "rmse",
        "RMSE",
        "",
        "low",
        1,
        "Distance of the mean function from the true curve.",
        main=True,
    ),
    Metric(
        "rmse_inside",
        "RMSE inside",
        "",
        "low",
        1,
        "The same where there are training data.",
        short="RMSE in",
    ),
    Metric(
        "nll",
        "NLL",
        "nats",
        "low",
        4,
        "Negative log likelihood of the test data: punishes being wrong and being falsely sure.",
        main=True,
    ),
    Metric(
        "nll_outside",
        "NLL outside",
        "nats",
        "low",
        2,
        "Negative log likelihood where there are no training data.",
        short="NLL out",
        main=True,
    ),
    Metric(
        "brier",
        "Brier",
        "",
        "low",
        4,
        "Squared distance of the class probabilities from the truth.",
    ),
    Metric(
        "ece",
        "ECE",
        "",
        "low",
        4,
        "Expected calibration error: mean gap between confidence and accuracy.",
        main=True,
    ),
    Metric(
        "coverage_inside",
        "Coverage inside",
        "",
        "none",
        2,
        "Share of the true curve within the central 95 % of the functions, where there are "
        "training data: below 0.95 they are too narrow.",
        short="cover in",
        main=True,
    ),
    Metric(
        "coverage_outside",
        "Coverage outside",
        "",
        "none",
        2,
        "The same where there are no training data.",
        short="cover out",
        main=True,
    ),
    Metric(
        "observation_coverage_inside",
        "Coverage of observations inside",
        "",
        "none",
        2,
        "Share of fresh observations within the central 95 % of their prediction, noise included.",
    ),
    Metric(
        "observation_coverage_outside",
        "Coverage of observations outside",
        "",
        "none",
        2,
        "The same where there are no training data.",
    ),
    Metric(
        "distance_to_nuts",
        "Distance to NUTS",
        "",
        "low",
        1,
        "Wasserstein distance of the functions' distribution from that of long Markov chains, "
        "which sample the exact posterior; for NUTS itself, of one half of its draws from the "
        "other.",
        short="to NUTS",
        main=True,
    ),
    Metric(
        "distance_to_nuts_inside",
        "Distance to NUTS inside",
        "",
        "low",
        1,
        "The same where there are training data.",
    ),
    Metric("r_hat", "R-hat", "", "low", 3, "Agreement of the Markov chains: 1 is perfect."),
    Metric(
        "effective_samples",
        "Effective samples",
        "",
        "high",
        0,
        "Independent draws that the Markov chains are worth, of the worst quantity.",
    ),
    Metric(
        "divergences", "Divergent transitions", "", "low", 0, "Steps that the sampler got wrong."
    ),
    Metric(
        "entropy_auc",
        "Entropy AUC, test",
        "",
        "high",
        3,
        "Area under the distribution function of the predictive entropy on test images, from 0 to "
        "1: high means sure.",
        short="AUC in",
        main=True,
    ),
    Metric(
        "outlier_entropy_auc",
        "Entropy AUC, outliers",
        "",
        "low",
        3,
        "The same on outliers: low means that the posterior says it does not know them.",
        short="AUC out",
        main=True,
    ),
    Metric(
        "ood_auroc",
        "Outlier AUROC",
        "",
        "high",
        3,
        "How well entropy tells outliers from test images: 1 perfectly, 0.5 not at all.",
        short="AUROC",
        main=True,
    ),
    Metric(
        "ood_aupr",
        "Outlier AUPR",
        "",
        "high",
        3,
        "Area under precision against recall for the same task.",
        short="AUPR",
    ),
    Metric(
        "ood_fpr95",
        "FPR at 95 % TPR",
        "",
        "low",
        3,
        "Test images called outliers when 95 % of the outliers are found.",
    ),
    Metric(
        "ood_auroc_mi",
        "Outlier AUROC, mutual information",
        "",
        "high",
        3,
        "Outlier AUROC with the draws' disagreement in place of entropy; 0.5 for a single weight "
        "setting.",
        short="AUROC MI",
    ),
    Metric(
        "ood_aupr_mi",
        "Outlier AUPR, mutual information",
        "",
        "high",
        3,
        "Outlier AUPR with the draws' disagreement.",
    ),
    Metric(
        "ood_fpr95_mi",
        "FPR at 95 % TPR, mutual information",
        "",
        "low",
        3,
        "FPR at 95 % TPR with the draws' disagreement.",
    ),
    Metric(
        "risk_coverage_area",
        "Risk–coverage area",
        "",
        "low",
        5,
        "Mean error over all shares of images answered, surest first: low when errors are where "
        "the doubts are.",
    ),
    Metric(
        "seconds",
        "Training time",
        "s",
        "low",
        1,
        "Wall time of training; depends on the hardware and on what else ran there.",
        short="sec",
        main=True,
        comparable=False,
    ),
    Metric(
        "attack_seconds",
        "Attack time",
        "s",
        "low",
        1,
        "Wall time of all attacks and of what was measured under them.",
        comparable=False,
    ),
    Metric("steps_per_second", "Speed", "steps/s", "high", 1, "Training steps per second."),
    Metric(
        "peak_memory_bytes",
        "Peak memory",
        "GiB",
        "low",
        2,
        "Memory of the accelerator, or of the process on a CPU.",
        scale=2.0**-30,
    ),
    Metric(
        "parameters",
        "Trained parameters",
        "millions",
        "none",
        3,
        "Numbers that training adjusts, generators included.",
        scale=1e-6,
    ),
)
METRICS: dict[str, Metric] = {metric.name: metric for metric in _ALL}


def metric_named(name: str) -> Metric:
    """The column of a metric; a plain one, if the metric is not listed here."""
    return METRICS.get(name) or Metric(name, name.replace("_", " "), "", "none", 4, "")


def ordered(names: Iterable[str], known: Iterable[str]) -> list[str]:
    """Each name once: first those in ``known``, in its order, then the others alphabetically.

    >>> ordered(["zeta", "bbh", "map", "bbh"], ["map", "bbh"])
    ['map', 'bbh', 'zeta']
    """
    places = {name: place for place, name in enumerate(known)}
    return sorted(set(names), key=lambda name: (places.get(name, len(places)), name))
