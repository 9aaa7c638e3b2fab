"""Where the command ``bbh`` starts: a package that is missing is one line, no traceback."""

import sys


def main() -> None:
    """Runs the command line, if what it needs beyond the library is installed."""
    try:
        # Only here: the wheel brings the command also where the extra is not installed.
        from bbh_studies.cli import entry_point
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in ("", "bbh", "bbh_studies"):
            raise
        remedy = "pip install 'bayes-by-hypernet[studies]'"
        print(f"bbh: the command line needs {package}: {remedy}", file=sys.stderr)
        sys.exit(1)
    entry_point()
