"""The toy study's exact posterior: sampled once by NUTS and kept with the package.

Weights are stored, not functions: 301 numbers give a draw's value anywhere.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import bbh
from bbh.files import atomic_path
from bbh.samples import Params
from bbh_studies.problems.toy.data import load_toy
from bbh_studies.problems.toy.exact import HiddenLayer
from bbh_studies.problems.toy.nuts import NutsSettings, convergence, nuts
from bbh_studies.problems.toy.study import HIDDEN_UNITS, Toy
from bbh_studies.record import versions
from bbh_studies.settings.gaussian_prior import GaussianPrior
from bbh_studies.settings.words import ConfigError

_FOLDER = Path(__file__).parent / "references"
_SETTINGS = NutsSettings(chains=4, warmup=300, draws=500)
# Draws stored of each chain; all 600 together stay below a megabyte.
_KEPT = 150


@dataclass(frozen=True)
class Reference:
    """Draws from the exact posterior.

    Attributes:
        samples: ``{name: [600, *shape]}``, chain after chain.
        about: Settings, convergence on the grid, time and versions.
    """

    samples: Params
    about: dict[str, Any]


def read_reference(problem: Toy, prior: GaussianPrior, folder: Path = _FOLDER) -> Reference | None:
    """The stored reference of this model; None if it was never sampled."""
    path = folder / _name(problem, prior)
    if prior.prior != "normal" or not path.with_suffix(".json").exists():
        return None
    with np.load(path.with_suffix(".npz"), allow_pickle=False) as stored:
        samples = {name: torch.from_numpy(stored[name]) for name in stored.files}
    return Reference(samples, json.loads(path.with_suffix(".json").read_text()))


def sample_reference(
    problem: Toy,
    prior: GaussianPrior,
    settings: NutsSettings = _SETTINGS,
    kept: int = _KEPT,
    folder: Path = _FOLDER,
) -> Reference:
    """Samples the posterior anew with Pyro and stores it.

    Args:
        problem: Data, network and likelihood whose posterior is sampled.
        prior: The prior over the network's weights.
        settings: Settings of NUTS.
        kept: Draws of each chain to store, equally spaced.
        folder: Where it is stored.
    """
    if prior.prior != "normal":
        raise ConfigError(f"prior={prior.prior}: the reference is sampled with prior=normal only.")
    data, scaling = load_toy(problem.noise_scale), problem.scaling
    exact = HiddenLayer(
        scaling.inputs(data.train_inputs),
        scaling.targets(data.train_targets),
        problem.noise_scale / scaling.target_scale,
        prior.prior_scale,
        HIDDEN_UNITS,
    )
    drawn = nuts(exact.potential, exact.draw_prior, settings)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(settings.seed)
        weights = exact.with_output_layer(drawn.values.flatten(0, 1))
    # Any posterior over this network can evaluate given weights.
    posterior = bbh.methods.maximum_a_posteriori(problem.make_network(), problem.likelihood())
    with torch.no_grad():
        functions = posterior.double()(data.grid.double(), weights).squeeze(-1)
    found = convergence(functions.unflatten(0, (settings.chains, settings.draws)))
    about = {
        "noise_scale": problem.noise_scale,
        "standardised": problem.standardised,
        "prior_scale": prior.prior_scale,
        "data": data.fingerprint,
        "settings": asdict(settings),
        "kept_per_chain": kept,
        **asdict(found),
        "divergences": drawn.divergences,
        "seconds": round(drawn.seconds, 1),
        "versions": versions() | {"pyro": _pyro_version()},
    }
    chosen = torch.linspace(0, settings.draws - 1, kept).round().long()
    samples = {
        name: value.unflatten(0, (settings.chains, settings.draws))[:, chosen].flatten(0, 1).float()
        for name, value in weights.items()
    }
    path = folder / _name(problem, prior)
    with atomic_path(path.with_suffix(".npz")) as temporary, temporary.open("wb") as file:
        arrays = {name: value.numpy() for name, value in samples.items()}
        np.savez_compressed(file, **arrays)  # pyright: ignore[reportArgumentType]
    with atomic_path(path.with_suffix(".json")) as temporary:
        temporary.write_text(json.dumps(about, indent=1) + "\n")
    return Reference(samples, about)


def _name(problem: Toy, prior: GaussianPrior) -> str:
    data = "-standardised" if problem.standardised else ""
    # With a suffix that ``with_suffix`` replaces; otherwise it would replace the .5 of 0.5.
    return f"noise-{problem.noise_scale:g}-prior-{prior.prior_scale:g}{data}.json"


def _pyro_version() -> str:
    import pyro

    return str(pyro.__version__)
