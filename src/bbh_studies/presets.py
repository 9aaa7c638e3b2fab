"""Which studies, presets and rows there are. Settings and their reasons lie with the studies."""

from bbh_studies.config import Config, ConfigError
from bbh_studies.images import presets as images
from bbh_studies.toy import presets as toy

_MNIST = {
    "paper": images.MNIST_PAPER,
    "legacy": images.MNIST_LEGACY,
    "corrected": images.MNIST_CORRECTED,
}
_CIFAR5 = {
    "paper": images.CIFAR5_PAPER,
    "legacy": images.CIFAR5_LEGACY,
    "corrected": images.CIFAR5_CORRECTED,
}
# Study → preset → row of the table → configuration. Attacks are made on the same posteriors.
_PRESETS: dict[str, dict[str, dict[str, Config]]] = {
    "toy": {"corrected": toy.CORRECTED, "legacy": toy.LEGACY},
    "digits": {"corrected": images.DIGITS},
    "mnist": _MNIST,
    "mnist-generators": {"paper": images.GENERATORS, "legacy": images.GENERATORS_LEGACY},
    "mnist-noise": {"paper": images.NOISE, "legacy": images.NOISE_LEGACY},
    "mnist-divergences": {"paper": images.DIVERGENCES, "legacy": images.DIVERGENCES_LEGACY},
    "mnist-attacks": _MNIST,
    "cifar5": _CIFAR5,
    "cifar5-temperatures": {"corrected": images.TEMPERATURES},
    "cifar5-attacks": _CIFAR5,
}
STUDIES = tuple(_PRESETS)


def preset_names(study: str) -> list[str]:
    """The presets of a study; the one to take unless told otherwise comes first."""
    if study not in _PRESETS:
        raise ConfigError(f"there is no study {study!r}: choose one of {', '.join(STUDIES)}.")
    return sorted(_PRESETS[study], key=lambda preset: preset != "corrected")


def preset_configs(study: str, preset: str) -> dict[str, Config]:
    """The rows of a study's table with the configurations to start from."""
    known = preset_names(study)
    if preset not in known:
        raise ConfigError(
            f"study {study} has no preset {preset!r}: choose one of {', '.join(known)}."
        )
    return _PRESETS[study][preset]


def preset_config(study: str, variant: str, preset: str) -> Config:
    """The configuration of one row."""
    configs = preset_configs(study, preset)
    if variant not in configs:
        raise ConfigError(f"{study} has no {variant!r}: choose one of {', '.join(configs)}.")
    return configs[variant]
