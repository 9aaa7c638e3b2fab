"""Posteriors that earlier runs kept, so that studies of attacks need not train them again."""

import logging
from pathlib import Path
from typing import Any, NamedTuple

import bbh
from bbh_studies.record import FILE_NAME, Record
from bbh_studies.run.leftovers import POSTERIOR_NAME, open_posterior
from bbh_studies.run.run import Run
from bbh_studies.settings.config import differences

logger = logging.getLogger("bbh")


class Kept(NamedTuple):
    """The posterior that an earlier run kept, and its training history."""

    posterior: bbh.Posterior[Any]
    history: list[dict[str, Any]]


def kept_folder(run: Run) -> Path | None:
    """Folder of an earlier run that kept the posterior to attack; None if there is none.

    It is a run of the attacked study with ``--keep-posterior`` and otherwise the same options.
    Whether it was trained on the same data is not checked here.
    """
    study = run.study.attacked
    if study is None:
        return None
    folder = run.folder.parents[2] / study.name / run.preset / run.folder.name
    if not all((folder / name).exists() for name in (POSTERIOR_NAME, FILE_NAME)):
        return None
    then = study.restored(Record.read(folder / FILE_NAME).config)
    for name, (before, now) in differences(then.trained_with, run.config.trained_with).items():
        logger.warning(
            "%s keeps a posterior with %s=%s, not %s: one is trained.", folder, name, before, now
        )
        return None
    return folder


def open_kept(run: Run, data: dict[str, str]) -> Kept | None:
    """The kept posterior that a run can attack, on the CPU; None if no run on these data kept one.

    Args:
        run: The run that needs a posterior.
        data: Names and fingerprints of the data, as the record of ``run`` will have them.
    """
    folder = kept_folder(run)
    if folder is None:
        return None
    record = Record.read(folder / FILE_NAME)
    if record.data != data:
        logger.warning("%s keeps a posterior of other data: one is trained.", folder)
        return None
    posterior, _ = open_posterior(folder, functions=False)
    return Kept(posterior, record.history)
