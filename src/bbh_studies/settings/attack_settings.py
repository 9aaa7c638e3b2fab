"""Settings of attacks, for the studies that attack posteriors."""

from dataclasses import dataclass


@dataclass(frozen=True)
class AttackSettings:
    """Attacks on a trained posterior.

    Attributes:
        attack_images: How many test images are attacked; the first ones are taken.
        attack_draws: Weight draws whose averaged loss PGD raises; its cost is their number times
            steps times sizes. With few draws PGD is weaker against wide posteriors, which then
            look better than they are. FGSM takes as many draws as predictions do, since its one
            gradient serves all sizes.
        attack_steps: Steps of PGD.
    """

    attack_images: int = 1000
    attack_draws: int = 100
    attack_steps: int = 20

    def check(self) -> None:
        """Accepts all positive numbers, which is checked for all settings together."""
