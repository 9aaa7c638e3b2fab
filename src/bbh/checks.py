"""Checks of arguments: an error in one clear line, before anything is computed."""

import math
from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any


def number(name: str, value: object, *, positive: bool = False) -> None:
    """Raises unless the value is a finite number that is positive, or at least not negative.

    >>> number("temperature", -1.0)
    Traceback (most recent call last):
    ValueError: temperature=-1.0: give a finite number that is not negative.
    """
    wanted = "a positive, finite number" if positive else "a finite number that is not negative"
    if not isinstance(value, Real):
        raise TypeError(f"{name}={shown(value)}: give {wanted}.")
    known = float(value)
    if not math.isfinite(known) or known < 0 or (positive and known == 0):
        raise ValueError(f"{name}={value}: give {wanted}.")


def whole(name: str, value: object, least: int, what: str) -> None:
    """Raises unless the value is a whole number of at least ``least``.

    Args:
        name: Name of the argument.
        value: Its value.
        least: The smallest number that works.
        what: What to do instead, for the message.
    """
    if not isinstance(value, Integral):
        raise TypeError(f"{name}={shown(value)}: {what}; it is a whole number.")
    if int(value) < least:
        raise ValueError(f"{name}={value}: {what}.")


def widths(name: str, values: Sequence[object]) -> None:
    """Raises unless there is a layer, and the widths of all layers are positive whole numbers."""
    if not values:
        raise ValueError(f"{name}={values}: give at least one layer width.")
    for value in values:
        whole(name, value, 1, "give positive layer widths")


def instance(
    name: str, value: object, kind: type[Any] | tuple[type[Any], ...], example: str
) -> None:
    """Raises unless the value is an object of a class or of one of several (and no class itself).

    >>> instance("network", 3, dict, "pass a dictionary, e.g. {}")
    Traceback (most recent call last):
    TypeError: network=3: pass a dictionary, e.g. {}.
    """
    if not isinstance(value, kind):
        raise TypeError(f"{name}={shown(value)}: {example}.")


def function(name: str, value: object, example: str) -> None:
    """Raises unless the value can be called."""
    if not callable(value):
        raise TypeError(f"{name}={shown(value)}: pass a function, e.g. {example}.")


def shown(value: object) -> str:
    """The value as it is written in Python if that is short, else its class."""
    text = repr(value)
    return text if len(text) <= 60 and "\n" not in text else f"<{type(value).__name__}>"
