"""``bbh data``: lists, downloads and checks the files of data sets."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from bbh_studies.datasets import SOURCES, DataError
from bbh_studies.datasets.sources import Source, data_dir_or_environment
from bbh_studies.settings.words import unknown
from bbh_studies.terminal import completion
from bbh_studies.terminal.help import Command, Group

app = typer.Typer(help="List, fetch and check data sets.", no_args_is_help=True, cls=Group)
console = Console()

_Names = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="NAME",
        help=f"{', '.join(SOURCES)}; all if none.",
        autocompletion=completion.data_sets,
    ),
]


@app.command("list", cls=Command)
def list_data() -> None:
    """Show which files the data sets consist of and where each of them is.

    Example: `BBH_DATA=data bbh data list`
    """
    folder = data_dir_or_environment(None)
    for sources in SOURCES.values():
        for source in sources.values():
            try:
                where = str(source.find(folder))
            except DataError:
                where = "not here: bbh data fetch"
            console.print(f"{source.folder}/{source.name}: {where}", markup=False, soft_wrap=True)


@app.command("fetch", cls=Command)
def fetch_data(names: _Names = None) -> None:
    """Download files from their publishers' mirrors into the cache and verify their checksums.

    Example: `bbh data fetch mnist`
    """
    for source in _sources(names):
        console.print(str(source.fetch()), markup=False, soft_wrap=True)


@app.command("check", cls=Command)
def check_data(
    names: _Names = None,
    data: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Folder with the data files.")
    ] = None,
) -> None:
    """Read every file and say whether it is what it should be.

    Example: `bbh data check mnist --data data`
    """
    folder = data_dir_or_environment(data)
    for source in _sources(names):
        found = source.check(folder)
        console.print(f"{source.folder}/{source.name}: {found}", markup=False, soft_wrap=True)


def _sources(names: list[str] | None) -> list[Source]:
    for name in names or []:
        if name not in SOURCES:
            raise unknown(f"there is no data set {name!r}", name, SOURCES)
    return [source for name in names or SOURCES for source in SOURCES[name].values()]
