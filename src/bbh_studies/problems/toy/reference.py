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
from bbh.priors import Normal
from bbh.samples import Params
from bbh_studies.problems.toy.data import ToyData
from bbh_studies.problems.toy.nuts import NutsSettings, convergence, nuts
from bbh_studies.problems.toy.study import toy_network
from bbh_studies.record import versions

_FOLDER = Path(__file__).parent / "references"
# Sampling takes two minutes at noise 9 on one core, and eight at noise 3.
_SETTINGS = NutsSettings(chains=4, warmup=250, draws=300)
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


def read_reference(
    noise_scale: float, prior_scale: float, folder: Path = _FOLDER
) -> Reference | None:
    """The stored reference of this model; None if it was never sampled."""
    path = folder / _name(noise_scale, prior_scale)
    if not path.with_suffix(".json").exists():
        return None
    with np.load(path.with_suffix(".npz"), allow_pickle=False) as stored:
        samples = {name: torch.from_numpy(stored[name]) for name in stored.files}
    return Reference(samples, json.loads(path.with_suffix(".json").read_text()))


def sample_reference(
    data: ToyData,
    prior_scale: float,
    settings: NutsSettings = _SETTINGS,
    kept: int = _KEPT,
    folder: Path = _FOLDER,
) -> Reference:
    """Samples the posterior anew with Pyro and stores it.

    Args:
        data: The data whose posterior is sampled.
        prior_scale: Standard deviation of the Gaussian prior.
        settings: Settings of NUTS.
        kept: Draws of each chain to store, equally spaced.
        folder: Where it is stored.
    """
    likelihood = bbh.likelihoods.Gaussian(data.noise_scale)
    prior = Normal(prior_scale)
    network = toy_network()
    drawn = nuts(network, likelihood, prior, data.train_inputs, data.train_targets, settings)
    posterior = bbh.methods.maximum_a_posteriori(network, likelihood, prior).double()
    with torch.no_grad():
        functions = posterior(data.grid.double(), drawn.samples).squeeze(-1)
    found = convergence(functions.unflatten(0, (settings.chains, settings.draws)))
    about = {
        "noise_scale": data.noise_scale,
        "prior_scale": prior_scale,
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
        for name, value in drawn.samples.items()
    }
    path = folder / _name(data.noise_scale, prior_scale)
    with atomic_path(path.with_suffix(".npz")) as temporary, temporary.open("wb") as file:
        arrays = {name: value.numpy() for name, value in samples.items()}
        np.savez_compressed(file, **arrays)  # pyright: ignore[reportArgumentType]
    with atomic_path(path.with_suffix(".json")) as temporary:
        temporary.write_text(json.dumps(about, indent=1) + "\n")
    return Reference(samples, about)


def _name(noise_scale: float, prior_scale: float) -> str:
    # With a suffix that ``with_suffix`` replaces; otherwise it would replace the .5 of 0.5.
    return f"noise-{noise_scale:g}-prior-{prior_scale:g}.json"


def _pyro_version() -> str:
    import pyro

    return str(pyro.__version__)
