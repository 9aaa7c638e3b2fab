"""Which runs a command asks for, with every setting checked before the first one starts."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from bbh_studies.problems.study import Rows, Study
from bbh_studies.record import FILE_NAME, Record, RecordError
from bbh_studies.run.leftovers import INSPECTION_NAME, POSTERIOR_NAME
from bbh_studies.run.run import Run
from bbh_studies.settings.config import Config, differences
from bbh_studies.settings.methods import METHODS
from bbh_studies.settings.words import ConfigError, nearest, unknown
from bbh_studies.studies import STUDIES, find_study

DEVICES = ("auto", "cpu", "cuda")


def plan(
    study: str,
    *,
    variants: Sequence[str] = (),
    preset: str | None = None,
    seeds: Sequence[int] | None = None,
    epochs: int | None = None,
    settings: Sequence[str] = (),
    out: Path = Path("runs"),
    keep_posterior: bool = False,
    inspect: bool = False,
) -> list[Run]:
    """The runs a command asks for.

    Args:
        study: Name of the study.
        variants: Rows of its table; empty for all.
        preset: Preset from which settings start; None takes the study's first.
        seeds: Every row gets one run for each seed; None takes the seeds of the problem. A row that
            is not trained, such as NUTS, has a run for the first of them only.
        epochs: Passes over the data; annealing keeps its share of them.
        settings: ``key=value``, applied last, to the rows that have such a setting.
        out: Folder below which every run gets a folder of its own.
        keep_posterior: See ``Run``.
        inspect: See ``Run``.
    """
    chosen = find_study(study)
    preset = preset or chosen.preset_names[0]
    names = dict.fromkeys(variants or chosen.rows(preset))
    rows = {name: chosen.row(name, preset) for name in names}
    _check_settings(settings, chosen, rows)
    runs: list[Run] = []
    starts = [(*row, words) for words in _of_parts(chosen, settings) for row in rows.items()]
    for variant, start, words in starts:
        config = _configured(start, epochs, words)
        if not config.method.is_trained and not config.problem.knows_reference:
            if variants:
                raise ConfigError(f"{variant}: it is not known for {', '.join(words)}.")
            continue
        if keep_posterior and config.method.unstorable:
            raise ConfigError(
                f"--keep-posterior: {variant} of preset {preset} has {config.method.unstorable}, "
                "which no file can describe. Use --inspect, or leave that row out."
            )
        part = [word.partition("=")[2] for word in chosen.part_of(config.flat)]
        its_seeds = list(dict.fromkeys(config.problem.default_seeds if seeds is None else seeds))
        # A reference is one stored sample: with other seeds it would be the same once more.
        for seed in its_seeds if config.method.is_trained else its_seeds[:1]:
            folder = (out / study / preset).joinpath(*part, f"{variant}-{seed}")
            runs.append(Run(chosen, variant, preset, seed, config, folder, keep_posterior, inspect))
    return runs


def check_before(
    runs: Sequence[Run], device: str, *, resume: bool = False, force: bool = False
) -> None:
    """Raises if the device does not exist, or if what is there of a run is not what is asked for.

    It is called before the first run starts. Finished runs are kept if they have the same settings,
    and interrupted ones go on or are refused; with ``force`` both are replaced.
    """
    if resume and force:
        raise ConfigError("--resume goes on with runs and --force starts them anew: choose one.")
    if device not in DEVICES:
        raise unknown(f"--device {device}", device, DEVICES)
    if device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("--device cuda: PyTorch finds no such device here. Use --device cpu.")
    for run in () if force else runs:
        if run.is_finished:
            _check_same_settings(run)
            _check_nothing_missing(run)
        elif run.is_interrupted and not resume:
            raise ConfigError(
                f"{run.folder} is of an interrupted run: --resume goes on with it, --force starts "
                "it anew."
            )
        elif run.checkpoint.exists():
            _check_same_training(run)


def _of_parts(study: Study, settings: Sequence[str]) -> list[list[str]]:
    """The settings for every part of the study that is asked for, or for the study as a whole.

    Several parts are separated by commas: ``dataset=boston,energy``.
    """
    if not study.parts:
        return [list(settings)]
    named = [word for word in settings if word.partition("=")[0] == study.part_setting]
    others = [word for word in settings if word not in named]
    chosen = named[-1].partition("=")[2].split(",") if named else study.parts
    return [[*others, f"{study.part_setting}={part}"] for part in dict.fromkeys(chosen)]


def _configured(config: Config, epochs: int | None, settings: Sequence[str]) -> Config:
    if epochs is not None:
        config = replace(config, training=config.training.with_epochs(epochs))
    known = config.names
    config = config.with_words(one for one in settings if one.partition("=")[0] in known)
    try:
        config.check()
    except ValueError as error:  # a number that the library refuses
        raise ConfigError(str(error)) from error
    return config


def _check_settings(settings: Sequence[str], study: Study, rows: Rows) -> None:
    """Raises for a setting that none of the rows has."""
    for setting in settings:
        name, equals, _ = setting.partition("=")
        if equals and any(name in config.names for config in rows.values()):
            continue
        if equals and (owners := _owners(name)):
            raise ConfigError(
                f"--set {setting}: {', '.join(rows)} of {study.name} would ignore it. It is a "
                f"setting of {', '.join(owners)}."
            )
        known = sorted({one for config in rows.values() for one in config.names})
        hint = "" if name in known else nearest(name, known)
        raise ConfigError(f"--set {setting}{hint}: write key=value with one of {', '.join(known)}.")


def _owners(name: str) -> list[str]:
    """The methods that have a setting, or else the studies that do."""
    methods = [word for word, method in METHODS.items() if name in vars(method())]
    return methods or [
        study.name
        for study in STUDIES.values()
        if any(name in config.names for config in study.rows().values())
    ]


def _check_same_settings(run: Run) -> None:
    """Raises if a finished run had other settings than those that are asked for."""
    path = run.folder / FILE_NAME
    try:
        then = run.study.restored(Record.read(path).config)
    except RecordError:
        return  # a damaged record is a failure of its own run only
    for name, (before, now) in differences(then.flat, run.config.flat).items():
        raise ConfigError(
            f"{path} is of a run with {name}={before}, not {now}. Choose another --out, or "
            "replace it with --force."
        )


def _check_same_training(run: Run) -> None:
    """Raises if an interrupted run had other settings than those that are asked for."""
    # Imported only here: training imports Lightning Fabric, which takes seconds.
    from bbh.training.checkpoints import CheckpointError, read_settings
    from bbh.training.settings import differences as what_differs

    try:
        made_with = read_settings(run.checkpoint)
    except CheckpointError:
        return  # likewise
    now = {f"settings.{name}": value for name, value in run.config.trained_with.items()}
    for difference in what_differs(made_with, now):
        raise ConfigError(
            f"{run.checkpoint} is of a run with {difference}. Choose another --out, or start anew "
            "with --force."
        )


def _check_nothing_missing(run: Run) -> None:
    """Raises if a finished run lacks a posterior or inspection that is now asked for."""
    if run.keep_posterior and not (run.folder / POSTERIOR_NAME).exists():
        raise ConfigError(
            f"{run.folder} is finished and kept no posterior: --force trains it again."
        )
    looked_at = (run.folder / INSPECTION_NAME).exists()
    if run.inspect and run.config.method.can_be_inspected and not looked_at:
        raise ConfigError(
            f"{run.folder} is finished and was not inspected: --force trains it again; if it kept "
            "its posterior, use `bbh inspect`."
        )
