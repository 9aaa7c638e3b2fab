"""Columns of the studies that attack posteriors."""

from bbh_studies.metric import Metric

# Attack → its title. The names of its metrics begin with the key.
ATTACK_TITLES = {"fgsm": "FGSM", "pgd": "PGD", "legacy": "Paper's FGSM"}
_ATTACKED = {
    "fgsm": "under one step along the gradient of the averaged predictive's loss, clipped to valid "
    "pixels",
    "pgd": "under many steps up the same loss that stay within ε and valid pixels",
    "legacy": "under the paper's attack, the average of one image for each draw, not clipped",
}
_MIDDLE = "at the middle of the sizes ε: 0.2 on MNIST, 4/255 on CIFAR5"


def attack_metrics(attack: str) -> tuple[Metric, ...]:
    """The columns of what is measured under one attack."""
    title, how = ATTACK_TITLES[attack], _ATTACKED[attack]
    fair = attack != "legacy"
    return (
        Metric(
            f"{attack}_mean_accuracy",
            f"{title}, mean accuracy",
            "%",
            "high",
            1,
            f"Share of test images that are classified rightly {how}, mean over all sizes.",
            short=title,
            main=True,
            scale=100.0,
        ),
        Metric(
            f"{attack}_accuracy",
            f"{title}, accuracy",
            "%",
            "high",
            1,
            f"The same {_MIDDLE}.",
            main=fair,
            scale=100.0,
        ),
        Metric(
            f"{attack}_auroc",
            f"{title}, AUROC",
            "",
            "high",
            3,
            f"How well entropy tells attacked from clean images {_MIDDLE}; 0.5 is chance.",
            short=f"{title} AUROC",
            main=fair,
        ),
        Metric(
            f"{attack}_auroc_mi",
            f"{title}, AUROC, mutual information",
            "",
            "high",
            3,
            "The same with the draws' disagreement in place of entropy.",
        ),
        Metric(
            f"{attack}_entropy",
            f"{title}, entropy",
            "",
            "none",
            3,
            f"Predictive entropy of attacked images as a share of its maximum, {_MIDDLE}.",
        ),
        Metric(
            f"{attack}_mutual_information",
            f"{title}, mutual information",
            "nats",
            "none",
            4,
            f"Disagreement of the draws about attacked images, {_MIDDLE}.",
        ),
        Metric(
            f"{attack}_linf",
            f"{title}, true L∞ size",
            "",
            "none",
            4,
            f"Largest change of a pixel, mean over images, {_MIDDLE}.",
        ),
        Metric(
            f"{attack}_l2",
            f"{title}, true L2 size",
            "",
            "none",
            3,
            "Length of the same perturbations. If every pixel changed by ε, it would be 5.6 on "
            "MNIST and 0.869 on CIFAR5.",
            # The paper's attack is smaller where draws disagree. The L∞ size does not show it,
            # since there is always some pixel about which all draws agree.
            main=not fair,
        ),
    )
