"""The register of studies: what stands here can be run, reported, completed and dry-run."""

from collections.abc import Mapping

from bbh_studies.problems import digits, mnist
from bbh_studies.problems.cifar5 import study as cifar5
from bbh_studies.problems.study import Study
from bbh_studies.problems.toy import study as toy
from bbh_studies.settings.methods import METHOD_TITLES
from bbh_studies.settings.words import ConfigError

STUDIES: dict[str, Study] = {
    study.name: study for study in (*toy.STUDIES, *digits.STUDIES, *mnist.STUDIES, *cifar5.STUDIES)
}


def study_title(name: str) -> str:
    """What reports call a study; its name, where a record is of a study that is not registered."""
    return STUDIES[name].title if name in STUDIES else name


def row_titles(study: str) -> Mapping[str, str]:
    """What tables call the rows of a study, in their order; methods, if it is not registered."""
    return STUDIES[study].row_titles if study in STUDIES else METHOD_TITLES


def row_title(study: str, row: str) -> str:
    """What tables call a row; its name, where a record is of a row that the study has not."""
    return row_titles(study).get(row, row)


def find_study(name: str) -> Study:
    """A study by its name."""
    if name not in STUDIES:
        raise ConfigError(f"there is no study {name!r}: choose one of {', '.join(STUDIES)}.")
    return STUDIES[name]
