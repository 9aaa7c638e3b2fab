"""Every setting of every study, and how it is written on the command line."""

import dataclasses
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# Settings of what is measured afterwards: the posterior is the same whatever they are.
AFTER_TRAINING = frozenset({"prediction_samples", "attack_images", "attack_draws", "attack_steps"})


class ConfigError(ValueError):
    """A setting does not exist or does not take that value."""


@dataclass(frozen=True)
class Config:
    """Settings of one run. Those of other methods are ignored.

    Attributes:
        method: map, ensemble, bbb, dropout, mnf or bbh; in the toy study also nuts, the reference.
        epochs: Passes over the training data.
        batch_size: Examples per step.
        optimizer: adam, rmsprop, or rmsprop_tf: as TensorFlow 1 has it.
        learning_rate: Its step size at the start.
        cosine_decay: Let the learning rate fall to zero along half a cosine.
        average_epochs: End with the mean of the parameters over this many last epochs; 0 for the
            last ones.
        anneal_start: Epoch at which β leaves 0.
        anneal_end: Epoch at which β reaches 1; 0 for β = 1 throughout.
        falling_beta: Let β fall to 0 instead, as in the authors' toy notebook.
        temperature: Constant factor on the complexity.
        gradient_clip: Largest norm of the gradient; 0 for none.
        precision: 32-true, or bf16-mixed: matrix products and convolutions in half the bits.
        prior: normal, the same for all weights, or fan_in: narrower by √fan-in.
        prior_scale: Standard deviation of the Gaussian prior.
        penalised: Which weights know the prior. For MAP and dropout: all, or kernels without
            biases; for flows: all, or those of dense layers.
        bayesian: Which parameters are Bayesian: names, module names or glob patterns; by default
            all but those of normalisation layers. Not where ``penalised`` names a part.
        warm_start_epochs: First train the MAP weights for so many epochs, and start bbb, mnf or
            bbh around them; 0 for a fresh network.
        num_samples: Weight draws per training step.
        likelihood_samples: How many of them enter the likelihood; 0 for all.
        prediction_samples: Weight draws for evaluation.
        split: test, or validation to choose settings by: no test image or outlier is looked at.
        attack_images: Test images that are attacked, the first ones.
        attack_draws: Weight draws on which PGD climbs; its cost is this times steps times sizes.
            With few of them it is weaker on wide posteriors, and flatters them. FGSM has as many
            as predict: its one gradient serves all sizes.
        attack_steps: Of PGD.
        divergence: closed_form, nearest_neighbour, joint, entropy or adversarial.
        prior_samples: Prior draws per step for the nearest-neighbour ones; 0 for num_samples.
        neighbours: k of the entropy estimate.
        critic_steps: Of the adversarial divergence, per training step.
        num_members: Of the ensemble.
        adversarial_epsilon: Perturbation in ensemble training; 0 for none.
        dropout_rate: Of MC dropout.
        dropout_layers: Put dropout layers into the network instead of masking its kernels.
        dropout_placement: Where residual units have them: unit, between their convolutions, or
            convolutions, after every one.
        initial_scale: Of Gaussian weights.
        max_scale: Upper limit of MNF's standard deviations.
        generator: layerwise, sliced or single.
        hidden: Widths of the hypernetworks' hidden layers.
        spread: Of generated weights at the start, in fan-in scales; 0 for the paper's Glorot.
        noise_dim: Dimension of z.
        noise_shared: One z for all tensors.
        network: Of CIFAR5: he, or paper for the one in the paper's code.
        blocks: Its residual units per stage; five make 32 layers.
        width: Its channels in the first stage.
        normalisation: In it: group, filter_response, batch, instance or batch_statistics.
        standardised_kernels: Bring every filter of He's to mean 0 and variance 1 before its use.
        final_norm: Normalise before the last layer of the paper's one.
        augmentation: none, crops (and flips), or distorted: with brightness and contrast as well.
        noise_scale: Standard deviation of the toy study's observation noise.
        steps_per_epoch: Full-batch steps that count as an epoch; toy study only.
        refresh_reference: Sample the toy study's reference anew, with Pyro, and store it.
    """

    method: str = "bbh"
    epochs: int = 100
    batch_size: int = 100
    optimizer: str = "adam"
    learning_rate: float = 1e-3
    cosine_decay: bool = False
    average_epochs: int = 0
    anneal_start: float = 0.0
    anneal_end: float = 0.0
    falling_beta: bool = False
    temperature: float = 1.0
    gradient_clip: float = 0.0
    precision: str = "32-true"
    prior: str = "normal"
    prior_scale: float = 1.0
    penalised: str = "all"
    bayesian: tuple[str, ...] = ()
    warm_start_epochs: int = 0
    num_samples: int = 1
    likelihood_samples: int = 0
    prediction_samples: int = 100
    split: str = "test"
    attack_images: int = 1000
    attack_draws: int = 100
    attack_steps: int = 20
    divergence: str = "closed_form"
    prior_samples: int = 0
    neighbours: int = 3
    critic_steps: int = 5
    num_members: int = 10
    adversarial_epsilon: float = 0.0
    dropout_rate: float = 0.5
    dropout_layers: bool = False
    dropout_placement: str = "unit"
    initial_scale: float = 0.01
    max_scale: float = 0.5
    generator: str = "layerwise"
    hidden: tuple[int, ...] = (64, 256, 512)
    spread: float = 0.1
    noise_dim: int = 1
    noise_shared: bool = False
    network: str = "he"
    blocks: int = 5
    width: int = 16
    normalisation: str = "group"
    standardised_kernels: bool = False
    final_norm: bool = True
    augmentation: str = "none"
    noise_scale: float = 9.0
    steps_per_epoch: int = 1
    refresh_reference: bool = False

    @property
    def starts_warm(self) -> bool:
        """Whether a MAP estimate is trained first."""
        return self.warm_start_epochs > 0 and self.method in ("bbb", "mnf", "bbh")

    @property
    def all_epochs(self) -> int:
        """Those of a warm start included."""
        return self.epochs + (self.warm_start_epochs if self.starts_warm else 0)

    @property
    def wants_dropout_layers(self) -> bool:
        """Whether the network itself is to switch units off."""
        return self.method == "dropout" and self.dropout_layers

    @staticmethod
    def of(stored: Mapping[str, Any]) -> "Config":
        """The settings of a record; those that are newer than it had their default value.

        >>> Config.of({"method": "bbh", "hidden": [16, 32]}).hidden
        (16, 32)
        """
        names = {field.name for field in dataclasses.fields(Config)}
        known: dict[str, Any] = {name: stored[name] for name in names & stored.keys()}
        for name, value in known.items():
            known[name] = tuple(value) if isinstance(value, list) else value  # JSON has no tuples
        return Config(**known)

    def changed(self, settings: list[str]) -> "Config":
        """This configuration with ``key=value`` settings from the command line applied.

        >>> Config().changed(["epochs=3", "hidden=16,32", "noise_shared=true"]).hidden
        (16, 32)
        """
        changes: dict[str, Any] = {}
        kinds = typing.get_type_hints(Config)
        for setting in settings:
            name, equals, text = setting.partition("=")
            if not equals or name not in kinds:
                raise ConfigError(
                    f"--set {setting}: write key=value with one of {', '.join(sorted(kinds))}."
                )
            changes[name] = _parse(name, text, kinds[name])
        return dataclasses.replace(self, **changes)


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """Settings of which both have a value, but not the same: name → the values as text.

    >>> differences({"epochs": 100, "hidden": [16, 32]}, {"epochs": 3.0, "hidden": (16, 32)})
    {'epochs': ('100', '3')}
    """
    texts = {name: (as_text(before[name]), as_text(now[name])) for name in now if name in before}
    return {name: (first, second) for name, (first, second) in texts.items() if first != second}


def as_text(value: Any) -> str:
    """A setting as it is written behind ``--set key=``.

    >>> as_text(3 * 0.1)
    '0.3'
    """
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return ",".join(str(one) for one in value)
    if isinstance(value, float) and value.is_integer():
        return str(int(value))  # the same setting as the integer a preset was written with
    # Without the last digit, in which products of decimals are off.
    return f"{value:.15g}" if isinstance(value, float) else str(value)


def _parse(name: str, text: str, kind: Any) -> Any:
    try:
        if kind is bool:
            return {"true": True, "false": False}[text.lower()]
        if isinstance(kind, types.GenericAlias):
            (of_parts, _) = typing.get_args(kind)
            return tuple(of_parts(part) for part in text.split(",")) if text else ()
        return kind(text)
    except (KeyError, ValueError) as error:
        word = "true or false" if kind is bool else getattr(kind, "__name__", str(kind))
        raise ConfigError(f"--set {name}={text}: the value must be {word}.") from error
