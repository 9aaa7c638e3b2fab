"""Settings that are words, and the error for everything that is no setting."""

from collections.abc import Iterable, Mapping
from typing import TypeVar

T = TypeVar("T")


class ConfigError(ValueError):
    """A setting does not exist or does not take that value."""


def choose(setting: str, word: str, choices: Mapping[str, T]) -> T:
    """What a word stands for, or an error that lists the words there are."""
    check_word(setting, word, choices)
    return choices[word]


def check_word(setting: str, word: str, known: Iterable[str]) -> None:
    """Raises if a setting has a value that stands for nothing."""
    words = list(known)
    if word not in words:
        raise ConfigError(f"{setting}={word}: choose one of {', '.join(words)}.")
