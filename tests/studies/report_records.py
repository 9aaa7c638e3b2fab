"""Synthetic records in the shape of real ones: no number here was measured."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bbh_studies.problems.images.attack import headline_numbers
from bbh_studies.record import Record
from bbh_studies.settings.words import ConfigError
from bbh_studies.studies import find_study

# Errors of three seeds, with the standard deviations that hand calculation gives: 0.06, 0.01, …
ERRORS = {
    "map": (0.90, 0.91, 0.92),
    "ensemble": (0.48, 0.50, 0.52),
    "bbb": (0.70, 0.80, 0.90),
    "dropout": (0.45, 0.46, 0.47),
    "mnf": (0.60, 0.62, 0.64),
    "bbh": (0.50, 0.56, 0.62),
}
OUTLIER_AREAS = {
    "map": 0.70,
    "ensemble": 0.64,
    "bbb": 0.31,
    "dropout": 0.58,
    "mnf": 0.57,
    "bbh": 0.49,
}
ABLATIONS = {
    "mnist-generators": ("single", "sliced", "layerwise"),
    "mnist-noise": ("shared-1", "independent-1", "shared-8", "independent-8"),
    "mnist-divergences": ("closed_form", "adversarial", "nearest_neighbour", "joint", "entropy"),
}


def make_record(variant: str = "bbh", seed: int = 0, **changes: Any) -> Record:
    """One record; ``changes`` replace fields."""
    study, preset = changes.get("study", "mnist"), changes.get("preset", "corrected")
    try:
        config = find_study(study).row(variant, preset).flat
    except ConfigError:
        config = find_study("mnist").row("bbh").flat
    content: dict[str, Any] = {
        "study": study,
        "variant": variant,
        "method": config["method"],
        "preset": preset,
        "seed": seed,
        "config": config,
        "metrics": {"error": 0.5, "nll": 0.02},
        "history": [],
        "data": {"synthetic": "0123456789abcdef", "outliers": "synthetic"},
        "hardware": {"machine": "synthetic", "cores": 2},
        "versions": {"bbh": "0.0.0", "torch": "0.0.0"},
        "commit": "0" * 40,
        "dirty": False,
    }
    return Record(**{**content, **changes})


def write_records(folder: Path) -> None:
    """A record of every study: MNIST under two presets with three seeds, the others with one."""
    generator = np.random.default_rng(0)
    for preset in ("paper", "corrected"):
        for variant, errors in ERRORS.items():
            for seed, error in enumerate(errors):
                area = OUTLIER_AREAS[variant] + 0.01 * (seed - 1)
                _write_classification(
                    folder, generator, "mnist", preset, variant, seed, error, area
                )
    for study, variants in ABLATIONS.items():
        for i, variant in enumerate(variants):
            _write_classification(
                folder, generator, study, "paper", variant, 0, 0.6 + 0.1 * i, 0.5 + 0.02 * i
            )
    for i, variant in enumerate((*ERRORS, "nuts")):
        _write_toy(folder, generator, variant, spread=4.0 * (i + 1))


def write_attacks(folder: Path) -> None:
    """Records of attacks on both data sets; Bayes by Hypernet is the best on MNIST, MAP on CIFAR5.

    Curves fall from 0.99 by a method's own steepness, twice as fast under PGD.
    """
    ranks = {"map": 5, "ensemble": 4, "bbb": 3, "dropout": 2, "mnf": 1, "bbh": 0}
    sizes = {"mnist-attacks": 9, "cifar5-attacks": 7}
    for study, number in sizes.items():
        for variant, rank in ranks.items():
            place = rank if study == "mnist-attacks" else 5 - rank
            curves = attack_curves(0.15 + 0.1 * place, number)
            metrics = headline_numbers(curves) | {"attack_seconds": 20.0}
            record = make_record(variant, study=study, metrics=metrics, curves=curves)
            record.write(folder / study / "corrected" / f"{variant}-0")


def attack_curves(steepness: float, number: int = 9) -> dict[str, list[float]]:
    """Curves of one record, with MNIST's sizes for nine of them and CIFAR5's for seven."""
    sizes = np.arange(9) / 20 if number == 9 else np.array([0, 1, 2, 4, 8, 16, 32]) / 255
    curves = {"epsilon": sizes}
    along = np.linspace(0, 8, number)
    for attack, strength in {"fgsm": 1.0, "pgd": 2.0, "legacy": 0.6}.items():
        harm = 1 - np.exp(-strength * steepness * along)
        curves |= {
            f"{attack}_accuracy": 0.99 * (1 - harm),
            f"{attack}_entropy": 0.02 + 0.5 * harm * np.exp(-steepness * along / 4),
            f"{attack}_mutual_information": 0.3 * harm,
            f"{attack}_auroc": 0.5 + 0.4 * harm,
            f"{attack}_auroc_mi": 0.5 + 0.3 * harm,
            f"{attack}_linf": sizes * min(1.0, strength),
            f"{attack}_l2": 20 * sizes * min(1.0, strength),
        }
    return {name: values.tolist() for name, values in curves.items()}


def _write_classification(
    folder: Path,
    generator: np.random.Generator,
    study: str,
    preset: str,
    variant: str,
    seed: int,
    error: float,
    area: float,
) -> None:
    metrics = {
        "error": error,
        "nll": 0.04 * error,
        "brier": 0.01 * error,
        "ece": 0.004,
        "entropy_auc": 0.98,
        "outlier_entropy_auc": area,
        "ood_auroc": 1.2 - area,
        "ood_aupr": 1.18 - area,
        "ood_fpr95": area / 4,
        "risk_coverage_area": 1e-4 * error,
        "seconds": 100.0 + seed,
        "steps_per_second": 50.0,
        "parameters": 431_080.0,
        "peak_memory_bytes": 2.0**30,
    }
    history = [
        {
            "epoch": epoch,
            "total": 30.0 * area / epoch,
            "nll": error / epoch,
            "complexity": 1e6 * area / epoch**0.5,
            "beta": 1.0,
            "learning_rate": 1e-3,
        }
        for epoch in range(1, 61)
    ]
    record = make_record(
        variant, seed, study=study, preset=preset, metrics=metrics, history=history
    )
    arrays = _classification_arrays(generator, area, series=study == "mnist")
    record.write(folder / study / preset / f"{variant}-{seed}", arrays)


def _classification_arrays(
    generator: np.random.Generator, area: float, *, series: bool
) -> dict[str, np.ndarray]:
    number, shown = 600, 24
    confidence = 1 - 0.5 * generator.beta(0.5, 6, number)
    entropy = 2.3 * generator.beta(0.3, 6, number)
    arrays = {
        "entropy": entropy.astype(np.float16),
        "outlier_entropy": (2.3 * generator.beta(2, 2 * area / (1 - area), number)).astype(
            np.float16
        ),
        "confidence": confidence.astype(np.float32),
        "correct": generator.random(number) < confidence,
        "doubtful_images": np.stack([_glyph(i) for i in range(shown)]),
        "doubtful_labels": np.arange(shown) % 10,
        "doubtful_predictions": (np.arange(shown) + 3) % 10,
        "doubtful_entropy": np.linspace(2.0, 1.0, shown).astype(np.float16),
        "fooled_images": np.stack([_glyph(i + 5) for i in range(shown)]),
        "fooled_predictions": np.arange(shown) % 10,
        "fooled_entropy": np.linspace(0, 0.1, shown).astype(np.float16),
    }
    if not series:
        return arrays
    angles = np.arange(-90, 91, 10)
    for name in ("three", "one", "six"):
        arrays[f"rotation_{name}_images"] = np.stack([_glyph(a // 10) for a in angles])
        arrays[f"rotation_{name}_angles"] = angles
        arrays[f"rotation_{name}_probabilities"] = _probabilities(generator, len(angles))
    arrays["mixing_images"] = np.stack([_glyph(i) for i in range(11)])
    arrays["mixing_factors"] = np.linspace(0, 1, 11)
    arrays["mixing_probabilities"] = _probabilities(generator, 11)
    return arrays


def _glyph(turn: int) -> np.ndarray:
    """A bar turned by ten degrees times ``turn``: no digit of any data set."""
    y, x = np.mgrid[-1:1:28j, -1:1:28j]
    angle = np.radians(10 * turn)
    across = np.abs(x * np.cos(angle) + y * np.sin(angle)) < 0.2
    along = np.abs(y * np.cos(angle) - x * np.sin(angle)) < 0.75
    return (255 * (across & along)).astype(np.uint8)


def _probabilities(generator: np.random.Generator, length: int) -> np.ndarray:
    logits = np.zeros((30, length, 10))
    logits[..., 3] = 6 * np.cos(np.linspace(-1.5, 1.5, length))
    logits[..., 7] = 6 - logits[..., 3]
    logits += generator.normal(size=logits.shape)
    exponentials = np.exp(logits)
    return (exponentials / exponentials.sum(-1, keepdims=True)).astype(np.float16)


def _write_toy(
    folder: Path, generator: np.random.Generator, variant: str, *, spread: float
) -> None:
    grid = np.linspace(-6, 6, 500)
    inputs = generator.uniform(-4, 4, 20)
    std = spread * (0.2 + np.maximum(np.abs(grid) - 3.5, 0))
    metrics = {
        "rmse": spread,
        "rmse_inside": spread / 4,
        "nll": 3.0 + spread / 10,
        "nll_outside": 4.0 + spread / 10,
        "coverage_inside": 0.95,
        "coverage_outside": 0.90,
        "seconds": 2.0,
    }
    if variant != "nuts":
        metrics["distance_to_nuts"] = spread / 2
    record = make_record(
        variant, study="toy", metrics=metrics, data={"synthetic": "cubic"}, method=variant
    )
    arrays = {
        "grid": grid,
        "truth": grid**3,
        "mean": grid**3 + 3 * np.sin(grid),
        "std": std,
        "quantiles": np.stack([grid**3 - 2 * std, grid**3 + 2 * std]),
        "quantile_levels": np.array([0.025, 0.975]),
        "draws": grid**3 + std * generator.normal(size=(20, 1)),
        "train_x": inputs,
        "train_y": inputs**3 + 9 * generator.normal(size=20),
    }
    record.write(folder / "toy" / "corrected" / f"{variant}-0", arrays)


def write_raw(path: Path, content: dict[str, Any] | Sequence[Any] | str) -> Path:
    """A file in a record's place."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path
