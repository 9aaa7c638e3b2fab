"""What a shell offers when Tab is pressed."""

from collections.abc import Iterable, Sequence
from typing import Any

from bbh_studies.config import Config
from bbh_studies.datasets import SOURCES
from bbh_studies.presets import STUDIES, preset_configs, preset_names
from bbh_studies.runner import DEVICES


def studies(incomplete: str) -> list[str]:
    """Names of studies."""
    return _starting(STUDIES, incomplete)


def methods(ctx: Any, incomplete: str) -> list[str]:
    """Rows of the study's table."""
    rows = (row for one in _chosen(ctx) for row in preset_configs(one, preset_names(one)[0]))
    return _starting(rows, incomplete)


def presets(ctx: Any, incomplete: str) -> list[str]:
    """The study's presets."""
    return _starting((name for one in _chosen(ctx) for name in preset_names(one)), incomplete)


def devices(incomplete: str) -> list[str]:
    """Where to train."""
    return _starting(DEVICES, incomplete)


def settings(incomplete: str) -> list[str]:
    """Keys that await a value."""
    return _starting((f"{name}=" for name in vars(Config())), incomplete)


def data_sets(incomplete: str) -> list[str]:
    """What can be fetched."""
    return _starting(SOURCES, incomplete)


def _chosen(ctx: Any) -> Sequence[str]:
    """The study on the line so far, or all of them."""
    # An option without its value keeps the parser from naming the arguments before it.
    words = [ctx.params.get("study"), *ctx.args]
    return [word for word in words if word in STUDIES] or STUDIES


def _starting(words: Iterable[str], incomplete: str) -> list[str]:
    return [word for word in dict.fromkeys(words) if word.startswith(incomplete)]
