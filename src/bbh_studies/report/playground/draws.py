"""Draws of the digits' posteriors for the page: what runs kept, in half precision."""

import base64
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import bbh
from bbh.predictive import ClassPredictive
from bbh.samples import Params
from bbh_studies.datasets import ImageData
from bbh_studies.problems.images.problem import ImageProblem
from bbh_studies.report import drawing
from bbh_studies.report.collect import Group, Runs
from bbh_studies.report.playground.layers import describe
from bbh_studies.run.leftovers import POSTERIOR_NAME, open_posterior
from bbh_studies.studies import find_study

# The study whose images can be drawn by hand on 8×8 pixels, and whose network fits into a page.
STUDY = "digits"
# Draws of each posterior: 27 kB each, so that six posteriors take three megabytes of a page.
NUM_DRAWS = 20
_SEED = 0
# Example images to start from, and the levels of their pixels: a multiple of the digits' sixteen.
_NUM_EXAMPLES = 30
_LEVELS = 240


def draws_of(group: Group) -> dict[str, Any] | None:
    """What the page needs to compute the beliefs of a group's posteriors; None if none was kept.

    Every row has its draws, and the entropies that these very draws give to test images and
    outliers, for the page to compare a drawing with.

    Args:
        group: Rows of the digits study; of each row the run with the lowest seed counts.
    """
    if group.study != STUDY:
        return None
    kept = {runs: folder for runs in group.rows if (folder := _kept(runs)) is not None}
    if not kept:
        return None
    problem = find_study(STUDY).restored(group.records[0].config).problem
    assert isinstance(problem, ImageProblem)
    with torch.random.fork_rng(devices=[]):
        layers = describe(problem.make_network())
    data = problem.on_split(problem.load(None))
    styles = drawing.styles(group.rows)
    return {
        "layers": layers,
        "side": data.test_images.shape[-1],
        "rows": [
            {"title": runs.label, "colour": styles[runs].colour} | _row(folder, data)
            for runs, folder in kept.items()
        ],
        "levels": _LEVELS,
        "examples": {
            "digit": [_as_text(one) for one in data.test_images[:_NUM_EXAMPLES]],
            "letter": [_as_text(one) for one in data.outlier_images[:_NUM_EXAMPLES]],
        },
    }


def kept_draws(folder: Path) -> tuple[bbh.Posterior[Any], Params]:
    """The posterior that a run kept, and its draws as the page has them, rounded to half precision.

    Args:
        folder: The run's folder.
    """
    posterior, _ = open_posterior(folder, functions=False)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(_SEED)
        samples = posterior.eval().sample(posterior.weights.num_useful(NUM_DRAWS))
    return posterior, {name: values.detach().half().float() for name, values in samples.items()}


def _kept(runs: Runs) -> Path | None:
    """The folder of the row's run with the lowest seed, if it kept its posterior."""
    path = runs.first.path
    return path.parent if path is not None and (path.parent / POSTERIOR_NAME).exists() else None


def _row(folder: Path, data: ImageData) -> dict[str, Any]:
    posterior, draws = kept_draws(folder)
    names = [name for name, _ in posterior.network.named_parameters()]
    flat = torch.cat([draws[name].flatten(1) for name in names], dim=1)
    entropies: list[list[float]] = []
    for images in (data.test_images, data.outlier_images):
        predictive: ClassPredictive = bbh.predict(posterior, images, samples=draws)
        entropies.append([round(float(one), 5) for one in predictive.entropy.sort().values])
    return {
        "draws": len(flat),
        "weights": _base64(flat.numpy().astype("<f2")),
        "entropies": {"digit": entropies[0], "letter": entropies[1]},
    }


def _as_text(image: Tensor) -> str:
    return _base64((image * _LEVELS).round().byte().numpy())


def _base64(values: np.ndarray) -> str:
    return base64.b64encode(values.tobytes()).decode()
