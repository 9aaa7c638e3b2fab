"""``python -m bbh_studies``: the command line."""

from bbh_studies.entry import main

if __name__ == "__main__":
    main()
