"""From a command to records: which runs there are, and one after the other, come what may."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from rich.console import Console

from bbh_studies.build import check_words
from bbh_studies.config import Config, ConfigError, differences
from bbh_studies.estimates import steps_per_epoch
from bbh_studies.inspection import INSPECTION_NAME, POSTERIOR_NAME
from bbh_studies.presets import preset_config, preset_configs, preset_names
from bbh_studies.record import FILE_NAME, Record
from bbh_studies.run import Run
from bbh_studies.study import attacked_study, study_of
from bbh_studies.terminal.progress import StudyProgress
from bbh_studies.terminal.tables import headline
from bbh_studies.terminal.time_left import duration

DEVICES = ("auto", "cpu", "cuda")


@dataclass(frozen=True)
class Failure:
    """A run that did not reach its end."""

    run: Run
    reason: str


@dataclass(frozen=True)
class Outcome:
    """What came of a study."""

    records: list[Record]
    failures: list[Failure]


def plan(
    study: str,
    *,
    variants: Sequence[str] = (),
    preset: str | None = None,
    seeds: Sequence[int] = (0,),
    epochs: int | None = None,
    settings: Sequence[str] = (),
    out: Path = Path("runs"),
    keep_posterior: bool = False,
    inspect: bool = False,
) -> list[Run]:
    """The runs a command asks for, every setting checked before the first one starts.

    Args:
        study: Its name.
        variants: Rows of its table; all if none.
        preset: Where configurations start; None takes the study's first.
        seeds: One run each.
        epochs: Passes over the data; annealing keeps its share of them.
        settings: ``key=value``, applied last.
        out: Folders of the runs go below.
        keep_posterior: See ``Run``.
        inspect: See ``Run``.
    """
    preset = preset or preset_names(study)[0]
    runs: list[Run] = []
    for variant in dict.fromkeys(variants or preset_configs(study, preset)):
        config = preset_config(study, variant, preset)
        if epochs is not None:
            config = with_epochs(config, epochs)
        config = config.changed(list(settings))
        _check(config)
        if keep_posterior and config.penalised != "all":
            raise ConfigError(
                f"--keep-posterior: {variant} of preset {preset} has penalised={config.penalised}, "
                "which no file can describe. Use --inspect, or leave that row out."
            )
        for seed in dict.fromkeys(seeds):
            folder = out / study / preset / f"{variant}-{seed}"
            runs.append(Run(study, variant, preset, seed, config, folder, keep_posterior, inspect))
    return runs


def with_epochs(config: Config, epochs: int) -> Config:
    """Shorter or longer training with annealing in proportion, so that it still ends in time.

    >>> short = with_epochs(Config(epochs=100, anneal_start=5, anneal_end=20), 10)
    >>> short.epochs, short.anneal_start, short.anneal_end
    (10, 0.5, 2.0)
    """
    factor = epochs / config.epochs
    return replace(
        config,
        epochs=epochs,
        anneal_start=config.anneal_start * factor,
        anneal_end=config.anneal_end * factor,
    )


def execute(
    runs: Sequence[Run],
    *,
    data: Path | None = None,
    device: str = "auto",
    resume: bool = False,
    console: Console,
) -> Outcome:
    """Runs them all; one that diverges or runs out of memory does not stop the others."""
    check_before(runs, device, resume)
    train = _trainer(runs[0].study, data)
    outcome = Outcome([], [])
    with StudyProgress(runs, steps_per_epoch, console) as progress:
        for run in runs:
            progress.begin()
            started = time.monotonic()
            path = run.folder / FILE_NAME
            finished = resume and path.exists()
            if not resume:
                # An interruption from here on must leave nothing that looks finished.
                run.forget()
                path.unlink(missing_ok=True)
            try:
                record = (
                    Record.read(path)
                    if finished
                    else train(run, device=device, resume=resume, progress=progress)
                )
            except (FloatingPointError, MemoryError, torch.OutOfMemoryError) as error:
                reason = str(error).split(". ")[0]
                outcome.failures.append(Failure(run, reason))
                progress.end(f"failed, {reason}", trained=False)
                continue
            run.forget()
            outcome.records.append(record)
            state = "was there" if finished else duration(time.monotonic() - started)
            progress.end(f"{headline(record)} ({state})", trained=not finished)
    return outcome


def check_before(runs: Sequence[Run], device: str, resume: bool) -> None:
    """Raises before the first run starts if there is no such device, or other runs are there."""
    _check_device(device)
    if resume:
        for run in runs:
            _check_same_settings(run)
            _check_nothing_missing(run)


def _trainer(study: str, data: Path | None) -> Callable[..., Record]:
    # Only here: they import Lightning Fabric, which takes seconds that nobody waits for with
    # --help or when a shell completes a word.
    from bbh_studies.images import attacks
    from bbh_studies.images import study as images
    from bbh_studies.toy import study as toy

    load = study_of(study).load
    if load is None:
        return toy.run_once
    run_once = attacks.run_once if attacked_study(study) else images.run_once
    return partial(run_once, data=load(data))


def _check(config: Config) -> None:
    check_words(config)
    if config.epochs < 1:
        raise ConfigError(f"epochs={config.epochs}: train for at least one.")
    for name in ("attack_images", "attack_draws", "attack_steps"):
        if getattr(config, name) < 1:
            raise ConfigError(f"{name}={getattr(config, name)}: take at least one.")
    if config.anneal_end > config.epochs:
        raise ConfigError(
            f"annealing would end at epoch {config.anneal_end:g} and training ends at "
            f"{config.epochs}: use --epochs, which shortens both, or --set anneal_end as well."
        )


def _check_device(device: str) -> None:
    if device not in DEVICES:
        raise ConfigError(f"--device {device}: choose one of {', '.join(DEVICES)}.")
    if device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("--device cuda: PyTorch finds no such device here. Use --device cpu.")


def _check_same_settings(run: Run) -> None:
    """A finished run is kept only if it is the one that is asked for."""
    path = run.folder / FILE_NAME
    if not path.exists():
        return
    # Settings that are newer than the record had their default value.
    then = vars(Config()) | Record.read(path).config
    for name, (before, now) in differences(then, vars(run.config)).items():
        raise ConfigError(
            f"{path} is of a run with {name}={before}, not {now}. Choose another --out, or leave "
            "out --resume to replace it."
        )


def _check_nothing_missing(run: Run) -> None:
    """A finished run is not trained again for what it did not leave behind."""
    if not (run.folder / FILE_NAME).exists():
        return
    kept, looked_at = run.folder / POSTERIOR_NAME, run.folder / INSPECTION_NAME
    if run.keep_posterior and not kept.exists():
        raise ConfigError(
            f"{run.folder} is finished and kept no posterior: leave out --resume to train it again."
        )
    # Points and networks' own dropout leave nothing to look at.
    random = run.config.method in ("ensemble", "bbb", "mnf", "bbh")
    if run.inspect and random and not looked_at.exists():
        raise ConfigError(
            f"{run.folder} is finished and was not inspected: leave out --resume to train it "
            "again, or use `bbh inspect` if it kept its posterior."
        )
