"""Settings whose values are words, and the error for unknown settings and values."""

from collections.abc import Iterable, Mapping
from typing import TypeVar

T = TypeVar("T")


class ConfigError(ValueError):
    """A setting does not exist or does not take that value."""


def choose(setting: str, word: str, choices: Mapping[str, T]) -> T:
    """What a word stands for; for an unknown word, raises an error that lists the known ones."""
    check_word(setting, word, choices)
    return choices[word]


def check_word(setting: str, word: str, known: Iterable[str]) -> None:
    """Raises if the value of a setting is not one of the known words."""
    words = list(known)
    if word not in words:
        raise ConfigError(f"{setting}={word}: choose one of {', '.join(words)}.")
