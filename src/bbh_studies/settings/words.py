"""Settings whose values are words, and the error for unknown settings and values."""

import difflib
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
        raise unknown(f"{setting}={word}", word, words)


def unknown(problem: str, word: str, known: Iterable[str]) -> ConfigError:
    """The error for a word that is not known, with the known ones and the nearest of them.

    >>> print(unknown("there is no study 'minst'", "minst", ["toy", "mnist"]))
    there is no study 'minst' (did you mean 'mnist'?): choose one of toy, mnist.
    """
    words = list(known)
    return ConfigError(f"{problem}{nearest(word, words)}: choose one of {', '.join(words)}.")


def nearest(word: str, known: Iterable[str]) -> str:
    """A question for the known word that a wrong one resembles; empty if it resembles none.

    >>> nearest("Epoch", ["epochs", "batch_size"])
    " (did you mean 'epochs'?)"
    """
    lower = {one.lower(): one for one in known}
    found = difflib.get_close_matches(word.lower(), lower, n=1)
    return f" (did you mean {lower[found[0]]!r}?)" if found else ""
