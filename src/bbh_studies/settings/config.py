"""All settings of one run, and how they are written in records and on the command line.

Settings are in groups: training, prior, the method's own, the problem's own, and those of attacks.
Outside of Python they have flat names, which are unique over all groups: ``learning_rate=0.01``.
"""

import types
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

import bbh
from bbh import checks
from bbh_studies.problems.problem import Problem
from bbh_studies.settings.attack_settings import AttackSettings
from bbh_studies.settings.gaussian_prior import GaussianPrior
from bbh_studies.settings.method import Method, Model
from bbh_studies.settings.optimisation import Optimisation
from bbh_studies.settings.words import ConfigError

GROUPS = ("training", "prior", "method", "problem", "attacks")
# Numbers that must not be zero. Others may: zero often means none, or the usual number.
_POSITIVE = frozenset(
    {
        *("epochs", "batch_size", "learning_rate", "prior_scale", "noise_scale"),
        *("num_samples", "prediction_samples", "num_members", "initial_scale", "max_scale"),
        *("hidden", "noise_dim", "critic_steps", "width", "blocks"),
        *("attack_images", "attack_draws", "attack_steps"),
    }
)


@dataclass(frozen=True)
class Config:
    """Settings of one run: only those that its method and its problem have.

    Attributes:
        method: The method and its own settings.
        problem: The problem and its own settings.
        training: How the posterior is fitted.
        prior: The prior over the weights.
        attacks: How the posterior is attacked; None if it is not.
    """

    method: Method
    problem: Problem
    training: Optimisation = Optimisation()  # noqa: RUF009 - frozen
    prior: GaussianPrior = GaussianPrior()  # noqa: RUF009 - frozen
    attacks: AttackSettings | None = None

    @property
    def flat(self) -> dict[str, Any]:
        """All settings by their flat names, and the method's word, as records hold them."""
        flat: dict[str, Any] = {"method": self.method.word}
        for group in GROUPS:
            flat |= self.settings_of(group)
        return flat

    @property
    def names(self) -> list[str]:
        """Names of the settings that can be changed: all but the method's word."""
        return [name for group in GROUPS for name in self.settings_of(group)]

    @property
    def trained_with(self) -> dict[str, str]:
        """All settings that the trained posterior depends on, as text.

        Those of attacks and of predictions only matter afterwards.
        """
        later = {"prediction_samples", *self.settings_of("attacks")}
        return {name: as_text(value) for name, value in self.flat.items() if name not in later}

    def settings_of(self, group: str) -> dict[str, Any]:
        """The settings of one group; empty if the run has no such group."""
        found = getattr(self, group)
        return {} if found is None else vars(found)

    @property
    def all_epochs(self) -> int:
        """Epochs of training, including those of a warm start."""
        return self.training.epochs + self.method.warm_epochs

    def check(self) -> None:
        """Raises if a setting has a value that cannot work, before anything is built."""
        for name, value in self.flat.items():
            _check_numbers(name, value)
        for group in GROUPS:
            if (found := getattr(self, group)) is not None:
                found.check()
        batch_size = self.training.batch_size
        if self.method.is_trained and self.problem.count_steps(batch_size) < 1:
            own = self.settings_of("problem").get("steps_per_epoch")
            raise ConfigError(
                f"batch_size={batch_size}: there are fewer training examples."
                if own is None
                else f"steps_per_epoch={own}: take at least one."
            )

    def make_network(self) -> nn.Module:
        """A freshly initialised network of the problem."""
        return self.problem.make_network(self.method.layer_dropout)

    def build_posterior(
        self, make_network: Callable[[], nn.Module] | None = None
    ) -> bbh.Posterior[Any]:
        """The posterior that these settings describe.

        Args:
            make_network: Makes the network to start from; None takes a fresh one.
        """
        return self.method.build(self.model(make_network))

    def model(self, make_network: Callable[[], nn.Module] | None = None) -> Model:
        """The model for which the method builds a posterior."""
        make = make_network or self.make_network
        return Model(
            make, self.problem.likelihood(), self.prior.make(), self.prior.bayesian or None
        )

    def with_settings(self, **settings: Any) -> "Config":
        """A copy with other values of some settings, by their flat names."""
        for name in settings.keys() - set(self.names):
            raise ConfigError(f"{name}: {self.method.word} has no such setting here.")
        changed: dict[str, Any] = {}
        for group in GROUPS:
            own = {name: settings[name] for name in self.settings_of(group) if name in settings}
            if own:
                changed[group] = replace(getattr(self, group), **own)
        return replace(self, **changed)

    def with_words(self, words: Iterable[str]) -> "Config":
        """A copy with ``key=value`` settings from the command line applied."""
        groups = {name: group for group in GROUPS for name in self.settings_of(group)}
        parsed: dict[str, Any] = {}
        for word in words:
            name, _, text = word.partition("=")
            kinds = typing.get_type_hints(type(getattr(self, groups[name])))
            parsed[name] = _parse(name, text, kinds[name])
        return self.with_settings(**parsed)

    def with_stored(self, stored: Mapping[str, Any]) -> "Config":
        """A copy with all settings that a record holds; other settings stay as they are."""
        found = {name: stored[name] for name in self.names if name in stored}
        # JSON has no tuples.
        return self.with_settings(
            **{name: tuple(one) if isinstance(one, list) else one for name, one in found.items()}
        )


def _check_numbers(name: str, value: Any) -> None:
    """Raises for a number that is negative or not finite, or zero where that has no meaning."""
    for one in value if isinstance(value, tuple) else (value,):
        if isinstance(one, int | float) and not isinstance(one, bool):
            checks.number(name, one, positive=name in _POSITIVE)


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """Settings that both have, with different values: name → the two values as text.

    >>> differences({"epochs": 100, "hidden": [16, 32]}, {"epochs": 3.0, "hidden": (16, 32)})
    {'epochs': ('100', '3')}
    """
    texts = {name: (as_text(before[name]), as_text(now[name])) for name in now if name in before}
    return {name: (first, second) for name, (first, second) in texts.items() if first != second}


def as_text(value: Any) -> str:
    """A setting's value as it is written after ``--set key=``.

    >>> as_text(3 * 0.1)
    '0.3'
    """
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return ",".join(str(one) for one in value)
    if isinstance(value, float) and value.is_integer():
        return str(int(value))  # presets may have the same value as an integer
    # 15 digits: without the last one, in which products of decimals are off.
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
