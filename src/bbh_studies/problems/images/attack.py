"""One run of a study of attacks: a posterior, trained now or kept, and what attacks do to it."""

import time
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from lightning_fabric import Fabric

import bbh
from bbh.attacks import FGSM, PGD, Attack, LegacyFGSM, robustness
from bbh.prediction.draws import evaluation_mode
from bbh.prediction.predicting import MEMORY_LIMIT
from bbh.samples import Samples
from bbh.training.display import Display
from bbh_studies.datasets import ImageData
from bbh_studies.problems.images.train_and_measure import (
    data_facts,
    draws_with_statistics,
    image_problem,
    train_on,
)
from bbh_studies.record import Record
from bbh_studies.run.kept import Kept, open_kept
from bbh_studies.run.leftovers import leave_behind
from bbh_studies.run.run import Run
from bbh_studies.settings.attack_settings import AttackSettings

# A curve's name is that of its attack and one of these endings. Ending → field of ``Robustness``.
_MEASURED = {
    "accuracy": "accuracy",
    "entropy": "normalised_entropy",
    "mutual_information": "mutual_information",
    "auroc": "auroc_entropy",
    "auroc_mi": "auroc_mutual_information",
    "linf": "linf",
    "l2": "l2",
}


def attack(
    run: Run,
    *,
    data: ImageData,
    device: str = "auto",
    resume: bool = False,
    progress: bool | Display = True,
) -> Record:
    """Attacks one posterior, and writes the record.

    The posterior is the one that a run of the attacked study kept. If there is none, it is trained
    first; with ``resume`` an interrupted training goes on from its checkpoint.
    """
    problem = image_problem(run)
    data = problem.on_split(data)
    facts = data_facts(data, problem.split)
    kept = open_kept(run, facts)
    if kept is None:
        trained = train_on(data, run, device=device, resume=resume, progress=progress)
        kept = Kept(trained.posterior, trained.history.to_dicts())
    posterior = kept.posterior.to(Fabric(accelerator=device, devices=1).device)
    number = problem.prediction_samples
    draws = draws_with_statistics(posterior, run, data, number) if run.inspect else None
    leave_behind(run, posterior, data.test_images, draws)
    # From here on random numbers are the same whether the posterior was trained now or kept.
    torch.manual_seed(run.seed)
    begun = time.monotonic()
    curves = attack_curves(posterior, run, data)
    metrics = headline_numbers(curves) | {"attack_seconds": time.monotonic() - begun}
    record = Record.of(run, metrics=metrics, history=kept.history, data=facts, curves=curves)
    record.write(run.folder, {name: np.array(values) for name, values in curves.items()})
    return record


def build_attacks(
    settings: AttackSettings, prediction_samples: int, memory_limit: int = MEMORY_LIMIT
) -> dict[str, Attack]:
    """The attacks, by the names with which their curves and metrics begin.

    ``fgsm`` and ``pgd`` attack the averaged predictive and clip to valid pixels; ``legacy`` is the
    paper's attack, which averages the images of single draws and does not clip.
    """
    one_step: Any = {"num_samples": prediction_samples, "memory_limit": memory_limit}
    return {
        "fgsm": FGSM(**one_step),
        "pgd": PGD(
            num_samples=settings.attack_draws,
            steps=settings.attack_steps,
            memory_limit=memory_limit,
        ),
        "legacy": LegacyFGSM(**one_step),
    }


def attack_curves(
    posterior: bbh.Posterior[Any], run: Run, data: ImageData
) -> dict[str, list[float]]:
    """The effect of every attack at each size, as means over images; ``epsilon`` lists the sizes.

    For every attack: ``…_accuracy``; ``…_entropy`` as a share of its maximum;
    ``…_mutual_information`` in nats; ``…_auroc`` and ``…_auroc_mi``, how well entropy and mutual
    information tell attacked from clean images; and the true sizes ``…_linf`` and ``…_l2``. The
    same draws predict for all attacks and sizes, and no attack has seen them.
    """
    settings, sizes = run.config.attacks, run.config.problem.attack_sizes
    assert settings is not None
    images = data.test_images[: settings.attack_images]
    labels = data.test_labels[: settings.attack_images]
    number = run.config.problem.prediction_samples
    draws = draws_with_statistics(posterior, run, data, number) or _draws(posterior, number)
    curves: dict[str, list[float]] = {"epsilon": list(sizes)}
    attacks = build_attacks(settings, number, _memory_limit(posterior.device))
    for name, one in attacks.items():
        own = draws_with_statistics(posterior, run, data, one.num_samples)
        found = robustness(posterior, images, labels, sizes, one, samples=draws, attack_samples=own)
        rows = [asdict(row) for row in found]
        for ending, field in _MEASURED.items():
            curves[f"{name}_{ending}"] = [row[field] for row in rows]
    return curves


def headline_numbers(curves: dict[str, list[float]]) -> dict[str, float]:
    """The metrics of a record: each curve's value at the middle size, and summaries of curves.

    ``error`` is the error on clean images in per cent, and ``…_mean_accuracy`` the mean accuracy
    over all sizes above zero.
    """
    sizes = curves["epsilon"]
    middle = len(sizes) // 2
    metrics = {"error": 100 * (1 - curves["fgsm_accuracy"][sizes.index(0)])}
    for name, values in curves.items():
        if name == "epsilon":
            continue
        metrics[name] = values[middle]
        attack, _, what = name.partition("_")
        if what == "accuracy":
            attacked = [one for size, one in zip(sizes, values, strict=True) if size > 0]
            metrics[f"{attack}_mean_accuracy"] = sum(attacked) / len(attacked)
    return metrics


def _memory_limit(device: torch.device) -> int:
    """Bytes for an attack: on a GPU an eighth of what is free, since other runs may use it too.

    With small pieces PGD passes through a deep network a hundred thousand times, and a GPU then
    waits for the next piece most of the time.
    """
    if device.type != "cuda":
        return MEMORY_LIMIT
    free, _ = torch.cuda.mem_get_info(device)
    return max(MEMORY_LIMIT, free // 8)


def _draws(posterior: bbh.Posterior[Any], number: int) -> Samples:
    """Weight draws to predict with; for an ensemble, each member once."""
    with evaluation_mode(posterior), torch.no_grad():
        return posterior.sample(posterior.weights.num_useful(number))
