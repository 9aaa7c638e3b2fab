"""The register of studies. Every command, report and shell completion looks studies up here."""

from collections.abc import Mapping

from bbh_studies.problems import digits, mnist
from bbh_studies.problems.cifar5 import study as cifar5
from bbh_studies.problems.cifar10_hmc import study as cifar10_hmc
from bbh_studies.problems.study import Study
from bbh_studies.problems.toy import study as toy
from bbh_studies.problems.uci import study as uci
from bbh_studies.settings.methods import METHOD_TITLES
from bbh_studies.settings.words import unknown

STUDIES: dict[str, Study] = {
    study.name: study
    for study in (
        *toy.STUDIES,
        *digits.STUDIES,
        *uci.STUDIES,
        *mnist.STUDIES,
        *cifar5.STUDIES,
        *cifar10_hmc.STUDIES,
    )
}


def study_title(name: str) -> str:
    """The title of a study in reports; its name, if the study is not registered."""
    return STUDIES[name].title if name in STUDIES else name


def row_titles(study: str) -> Mapping[str, str]:
    """Titles of a study's rows in tables, in order; those of methods, if it is not registered."""
    return STUDIES[study].row_titles if study in STUDIES else METHOD_TITLES


def row_title(study: str, row: str) -> str:
    """The title of a row in tables; its name, if the study has no such row."""
    return row_titles(study).get(row, row)


def find_study(name: str) -> Study:
    """A study by its name."""
    if name not in STUDIES:
        raise unknown(f"there is no study {name!r}", name, STUDIES)
    return STUDIES[name]
