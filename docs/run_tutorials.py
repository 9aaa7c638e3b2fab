"""Runs tutorials and stores their outputs: ``python docs/run_tutorials.py [NAME …]``, or all."""

import os
import sys
import tempfile
from pathlib import Path

import nbclient
import nbformat

TUTORIALS = Path(__file__).parent / "tutorials"
# tqdm, which packages of others import, asks for widgets that nothing here uses.
_QUIET = {"PYTHONWARNINGS": "ignore:IProgress not found"}


def executed(path: Path, folder: str | Path) -> nbformat.NotebookNode:
    """The notebook with new outputs, run in this folder, where it may write files."""
    notebook = nbformat.read(path, as_version=4)
    client = nbclient.NotebookClient(
        notebook,
        timeout=600,
        record_timing=False,  # it would differ from run to run
        coalesce_streams=True,
        resources={"metadata": {"path": str(folder)}},
    )
    client.execute(env=os.environ | _QUIET)
    # Not the version of Python, which says nothing about the tutorial.
    notebook.metadata = nbformat.from_dict(
        {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        }
    )
    return notebook


def main(names: list[str]) -> None:
    """Runs the tutorials of these names, each in an empty folder of its own."""
    paths = [TUTORIALS / f"{name}.ipynb" for name in names] or sorted(TUTORIALS.glob("*.ipynb"))
    for path in paths:
        with tempfile.TemporaryDirectory() as folder:
            notebook = executed(path, folder)
        nbformat.write(notebook, path)
        print(f"{path.name}: {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main(sys.argv[1:])
