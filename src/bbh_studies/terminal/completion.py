"""Words that a shell offers when Tab is pressed."""

from collections.abc import Iterable, Sequence
from typing import Any

from bbh_studies.bench.settings import BENCHMARKS
from bbh_studies.datasets import SOURCES
from bbh_studies.problems.study import Study
from bbh_studies.run.plan import DEVICES
from bbh_studies.settings.config import GROUPS
from bbh_studies.studies import STUDIES


def studies(incomplete: str) -> list[str]:
    """Names of studies."""
    return _starting(STUDIES, incomplete)


def methods(ctx: Any, incomplete: str) -> list[str]:
    """Rows of the study's table."""
    return _starting((row for one in _chosen(ctx) for row in one.rows()), incomplete)


def presets(ctx: Any, incomplete: str) -> list[str]:
    """The study's presets."""
    return _starting((name for one in _chosen(ctx) for name in one.preset_names), incomplete)


def devices(incomplete: str) -> list[str]:
    """Devices to train on."""
    return _starting(DEVICES, incomplete)


def settings(ctx: Any, incomplete: str) -> list[str]:
    """Settings of the study, each with ``=`` for the value that follows."""
    configs = [config for one in _chosen(ctx) for config in one.rows().values()]
    names = (f"{name}=" for group in GROUPS for one in configs for name in one.settings_of(group))
    return _starting(names, incomplete)


def data_sets(incomplete: str) -> list[str]:
    """Data sets that can be fetched."""
    return _starting(SOURCES, incomplete)


def benchmarks(incomplete: str) -> list[str]:
    """Benchmarks that can be run."""
    return _starting(BENCHMARKS, incomplete)


def _chosen(ctx: Any) -> Sequence[Study]:
    """The study that the command line names so far; all studies, if it names none."""
    # If the last option still lacks its value, the parser leaves the study among the other words.
    words = [ctx.params.get("study"), *ctx.args]
    return [STUDIES[word] for word in words if word in STUDIES] or list(STUDIES.values())


def _starting(words: Iterable[str], incomplete: str) -> list[str]:
    return [word for word in dict.fromkeys(words) if word.startswith(incomplete)]
