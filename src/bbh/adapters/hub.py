"""Posteriors in the layout of the Hugging Face hub: a folder of weights, settings and a model card.

The folder has ``model.safetensors`` (what ``bbh.save`` writes), ``config.json`` (what the posterior
is, and the configuration of a model of transformers) and ``README.md``, the model card.
"""

import importlib
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from torch import nn

from bbh.files import atomic_path
from bbh.posterior import Posterior
from bbh.samples import size
from bbh.storage import StorageError, load, save
from bbh.storage.bounded import BoundedBuilding
from bbh.version import __version__

WEIGHTS, CONFIG, CARD = "model.safetensors", "config.json", "README.md"
_EXTRA = "pip install 'bayes-by-hypernet[huggingface]'"


def save_pretrained(
    posterior: Posterior[Any],
    folder: str | Path,
    *,
    metrics: Mapping[str, float] | None = None,
    description: str = "",
    with_frozen: bool = True,
) -> None:
    """Writes a posterior to a folder that can be uploaded to the hub as it is.

    Inputs that the posterior keeps for batch norm are part of the weights: call
    ``posterior.keep_reference(None)`` first where they must not leave the machine.

    Args:
        posterior: A posterior that was made by one of ``bbh.methods``.
        folder: The folder, which may exist; its files of the same names are replaced.
        metrics: Numbers for the model card, such as the result of ``bbh.evaluate``.
        description: What the model is for and what it was trained on, for the model card.
        with_frozen: Whether the folder has the network's frozen parameters too, so that it can be
            loaded without them. False is for adapters of a base model that users have already.
    """
    folder = Path(folder)
    save(posterior, folder / WEIGHTS, with_frozen=with_frozen)
    facts = _facts(posterior)
    _write(folder / CONFIG, json.dumps(facts, indent=1) + "\n")
    _write(folder / CARD, _card(facts, dict(metrics or {}), description))


def load_pretrained(
    source: str | Path, network: nn.Module | None = None, **options: Any
) -> Posterior[Any]:
    """Reads a posterior from a folder that ``save_pretrained`` wrote, or from the hub.

    Nothing in the folder is executed.

    Args:
        source: A folder, or the name of a repository on the hub, such as ``"user/model"``.
        network: A network with the structure of the one that was given to the method. None makes a
            model of transformers from the configuration in the folder.
        options: Further arguments of ``bbh.load``, such as ``forward``.
    """
    folder = Path(source)
    if isinstance(source, Path) and not source.is_dir():
        raise FileNotFoundError(f"there is no folder {source}.")
    if not folder.is_dir():
        files = [WEIGHTS, CONFIG, CARD]
        folder = Path(_hub().snapshot_download(str(source), allow_patterns=files))
    if network is None:
        network = _network_of(folder)
    return load(folder / WEIGHTS, network, **options)


def push_to_hub(
    posterior: Posterior[Any],
    repo_id: str,
    *,
    metrics: Mapping[str, float] | None = None,
    description: str = "",
    private: bool = True,
    token: str | None = None,
) -> str:
    """Uploads a posterior to the hub, and returns the address of the commit.

    Args:
        posterior: A posterior that was made by one of ``bbh.methods``.
        repo_id: The name of the repository, such as ``"user/model"``; it is made if there is none.
        metrics: Numbers for the model card, such as the result of ``bbh.evaluate``.
        description: What the model is for and what it was trained on, for the model card.
        private: Whether a repository that is made is private.
        token: A token to write with; None takes the one that you logged in with.
    """
    hub = _hub().HfApi(token=token)
    with tempfile.TemporaryDirectory() as folder:
        save_pretrained(posterior, folder, metrics=metrics, description=description)
        hub.create_repo(repo_id, private=private, exist_ok=True)
        return str(hub.upload_folder(repo_id=repo_id, folder_path=folder))


def _facts(posterior: Posterior[Any]) -> dict[str, Any]:
    """What the posterior is, ready for JSON."""
    assert posterior.recipe is not None  # or it could not have been saved
    config: Any = getattr(posterior.network, "config", None)
    return {
        "library": "bayes-by-hypernet",
        "version": __version__,
        "method": posterior.recipe.method,
        "likelihood": type(posterior.likelihood).__name__,
        "prior": repr(posterior.prior),
        "num_weights": size(posterior.weights.shapes),
        "network": {
            "class": type(posterior.network).__name__,
            # Only configurations of transformers are known to be complete.
            "config": config.to_dict() if hasattr(config, "to_dict") else None,
        },
    }


def _network_of(folder: Path) -> nn.Module:
    """A model of transformers with random weights, from its configuration."""
    try:
        facts = json.loads((folder / CONFIG).read_text())["network"]
        name, config = str(facts["class"]), facts["config"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise StorageError(f"{folder / CONFIG} is missing or damaged: {error}") from error
    if not isinstance(config, dict):
        raise StorageError(
            f"{folder} has a posterior over {name}, which is no model of transformers: pass the "
            "network, load_pretrained(source, network)."
        )
    try:
        transformers = importlib.import_module("transformers")
    except ImportError as error:
        raise ImportError(f"transformers is not installed: {_EXTRA}.") from error
    kind = getattr(transformers, name, None)
    if not (isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel)):
        raise StorageError(
            f"{folder} has a posterior over {name}, which transformers {transformers.__version__} "
            "does not have: pass the network, load_pretrained(source, network)."
        )
    known: Any = kind
    try:
        # The file has all weights of a network that is made here: it cannot be much larger.
        with BoundedBuilding((folder / WEIGHTS).stat().st_size // 2):
            return known(known.config_class.from_dict(_without_code(config)))
    # A configuration that was tampered with may raise any error.
    except Exception as error:
        problem = str(error).partition("\n")[0] or type(error).__name__
        raise StorageError(
            f"{folder / CONFIG} describes no {name} that can be made: {problem}. Pass the network, "
            "load_pretrained(source, network)."
        ) from error


def _without_code(config: Any) -> Any:
    """The configuration without the names of programs that transformers would download and run."""
    if not isinstance(config, dict):
        return config
    known = cast(dict[str, Any], config)
    return {
        name: _without_code(value)
        for name, value in known.items()
        if not name.endswith(("_implementation", "_implementation_internal"))
    }


def _card(facts: dict[str, Any], metrics: dict[str, float], description: str) -> str:
    """The model card, with what the hub reads at its top."""
    network = facts["network"]["class"]
    method = facts["method"].replace("_", " ")
    remade = facts["network"]["config"] is not None
    call = '"PATH or user/model"' if remade else '"PATH or user/model", network'
    table = "".join(f"| {name} | {value:.4g} |\n" for name, value in metrics.items())
    return (
        "---\n"
        "library_name: bayes-by-hypernet\n"
        "tags:\n- bayesian\n- uncertainty\n"
        f"- {facts['method'].replace('_', '-')}\n"
        "---\n\n"
        f"# A posterior over {network}\n\n"
        + (f"{description.strip()}\n\n" if description.strip() else "")
        + f"A distribution over the {facts['num_weights']:,} weights of a `{network}`, made by the "
        f"method *{method}* of bayes-by-hypernet {facts['version']}.\n\n"
        f"- Likelihood: `{facts['likelihood']}`\n"
        f"- Prior: `{facts['prior'][:300]}`\n\n"
        + (f"## Metrics\n\n| | |\n|---|---:|\n{table}\n" if metrics else "")
        + "## Use\n\n```python\nimport bbh\n\n"
        + ("" if remade else f"network = ...  # a {network} of the same structure\n")
        + f"posterior = bbh.adapters.load_pretrained({call})\n"
        "predictive = bbh.predict(posterior, inputs, num_samples=100)\n```\n"
    )


def _write(path: Path, text: str) -> None:
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def _hub() -> Any:
    try:
        return importlib.import_module("huggingface_hub")
    except ImportError as error:
        raise ImportError(f"huggingface_hub is not installed: {_EXTRA}.") from error
