"""How posteriors are attacked, in the studies that do."""

from dataclasses import dataclass

from bbh_studies.settings.words import ConfigError


@dataclass(frozen=True)
class AttackSettings:
    """Attacks on a trained posterior.

    Attributes:
        attack_images: Test images that are attacked, the first ones.
        attack_draws: Weight draws on which PGD climbs; its cost is this times steps times sizes.
            With few of them it is weaker on wide posteriors, and flatters them. FGSM has as many
            as predict: its one gradient serves all sizes.
        attack_steps: Steps of PGD.
    """

    attack_images: int = 1000
    attack_draws: int = 100
    attack_steps: int = 20

    def check(self) -> None:
        """Raises unless there is something to do."""
        for name, number in vars(self).items():
            if number < 1:
                raise ConfigError(f"{name}={number}: take at least one.")
