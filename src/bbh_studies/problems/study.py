"""A study: one table of the paper or one question, with everything that belongs to it alone."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bbh_studies.problems.problem import Problem, Runner
from bbh_studies.settings.attack_settings import AttackSettings
from bbh_studies.settings.config import Config
from bbh_studies.settings.methods import METHOD_TITLES, METHODS
from bbh_studies.settings.words import choose, unknown

_ATTACK_COLUMNS = (
    "PGD, FGSM, paper's: accuracy under the attack, mean over its sizes. AUROC: how well entropy "
    "tells attacked from clean images at the middle size; 0.5 is chance."
)
Rows = Mapping[str, Config]


@dataclass(frozen=True, eq=False)  # there is one object per study
class Study:
    """Posteriors that are compared on one problem.

    Attributes:
        name: Its name on the command line and in records.
        title: Its title in reports.
        presets: Preset → row of the table → settings to start from.
        row_titles: Row → its title in tables, in their order; by default rows are methods.
        attacked: The study whose posteriors this one attacks; None if it attacks nothing.
        part_setting: The problem's setting that says which part of the study a run belongs to, if
            the study consists of several problems with a table each; else empty.
        parts: The values of that setting. A command that does not set it runs all of them.
    """

    name: str
    title: str
    presets: Mapping[str, Rows]
    row_titles: Mapping[str, str] = field(default_factory=lambda: METHOD_TITLES)
    attacked: "Study | None" = None
    part_setting: str = ""
    parts: tuple[str, ...] = ()

    def part_of(self, config: Mapping[str, Any]) -> tuple[str, ...]:
        """The part that a run with these flat settings belongs to, as ``--set`` takes it."""
        name = self.part_setting
        return (f"{name}={config[name]}",) if name and name in config else ()

    @property
    def problem(self) -> Problem:
        """The problem; some of its settings may differ between rows."""
        return next(iter(self.rows().values())).problem

    @property
    def preset_names(self) -> list[str]:
        """Names of the presets; the one to take by default comes first."""
        return sorted(self.presets, key=lambda preset: preset != "corrected")

    @property
    def columns(self) -> str:
        """Explains the columns of the study's table in a terminal."""
        return self.problem.columns if self.attacked is None else _ATTACK_COLUMNS

    def rows(self, preset: str | None = None) -> Rows:
        """The rows of its table with the settings to start from; None for the first preset."""
        names = self.preset_names
        chosen = names[0] if preset is None else preset
        if chosen not in self.presets:
            raise unknown(f"study {self.name} has no preset {chosen!r}", chosen, names)
        return self.presets[chosen]

    def row(self, name: str, preset: str | None = None) -> Config:
        """The settings that one row starts from."""
        rows = self.rows(preset)
        if name not in rows:
            raise unknown(f"{self.name} has no {name!r}", name, rows)
        return rows[name]

    def restored(self, stored: Mapping[str, Any]) -> Config:
        """The settings of a record; settings newer than the record have their default value."""
        method = choose("method", stored.get("method", ""), METHODS)()
        attacks = None if self.attacked is None else AttackSettings()
        return Config(method, type(self.problem)(), attacks=attacks).with_stored(stored)

    def runner(self, folder: Path | None) -> Runner:
        """Reads the data, and returns what trains (or attacks), measures and records a run.

        The returned function takes the run, and ``device``, ``resume`` and ``progress``.
        """
        problem = self.problem
        return problem.runner(folder) if self.attacked is None else problem.attacker(folder)


def attacks_on(study: Study) -> Study:
    """A study that attacks the posteriors of another: the same rows, with settings of attacks."""
    presets = {
        preset: {row: replace(config, attacks=AttackSettings()) for row, config in rows.items()}
        for preset, rows in study.presets.items()
    }
    title = f"{study.title}: attacks"
    return Study(f"{study.name}-attacks", title, presets, study.row_titles, attacked=study)
