"""``python -m bbh_studies``: the command line."""

from bbh_studies.cli import entry_point

if __name__ == "__main__":
    entry_point()
