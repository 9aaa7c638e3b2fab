"""Prints what a command would do, without doing it."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from bbh_studies.run.estimates import estimate
from bbh_studies.run.kept import kept_folder
from bbh_studies.run.run import Run
from bbh_studies.settings.config import as_text, differences


def show_plan(runs: Sequence[Run], console: Console) -> None:
    """Prints configuration, size and folders of every row of a study's table."""
    for part, variant in dict.fromkeys((run.part, run.variant) for run in runs):
        of_variant = [run for run in runs if (run.part, run.variant) == (part, variant)]
        title = ", ".join([runs[0].study.row_titles[variant], *part])
        console.print(f"[bold]{title}[/bold]")
        console.print(_facts(of_variant))
    number = "1 run" if len(runs) == 1 else f"{len(runs)} runs"
    console.print(f"{number}; nothing was trained, no file written.", highlight=False)


def _facts(runs: Sequence[Run]) -> Table:
    run = runs[0]
    size = estimate(run)
    preset = run.study.row(run.variant, run.preset)
    changed = differences(preset.flat, run.config.flat)
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row("  preset", run.preset)
    changes = (f"{name} {before} → {now}" for name, (before, now) in changed.items())
    table.add_row("  changed", ", ".join(changes) or "nothing")
    table.add_row("  network weights", f"{size.weights:,}")
    if size.steps:
        table.add_row("  posterior parameters", f"{size.parameters:,}")
        memory = (
            f"up to {size.memory_bytes / 2**30:.2f} GiB for parameters, gradients and optimiser"
        )
        table.add_row("  training memory", f"{memory}; draws and activations on top")
        each = f"{run.config.all_epochs:,} epochs of {size.steps_per_epoch:,}"
        table.add_row("  steps", f"{size.steps:,} ({each})")
    settings = (f"{name}={as_text(value)}" for name, value in run.config.flat.items())
    table.add_row("  settings", " ".join(settings))
    for one in runs:
        kept = kept_folder(one)
        beside = "" if kept is None else f", with the posterior of {kept} (if of the same data)"
        state = " (finished)" if one.is_finished else " (interrupted)" * one.is_interrupted
        table.add_row(f"  seed {one.seed}", f"{one.folder}{state}{beside}")
    return table
