"""Adapters that make posteriors usable in other libraries.

Those for Lightning and Hugging Face are imported when they are first used, since neither need be
installed.
"""

import importlib
from typing import TYPE_CHECKING, Any

from bbh.adapters.averaged import AveragedNetwork, foolbox_model
from bbh.adapters.exporting import ExportedPosterior, export
from bbh.adapters.hub import load_pretrained, push_to_hub, save_pretrained

if TYPE_CHECKING:
    from bbh.adapters.hugging_face import BayesianTrainer
    from bbh.adapters.lightning import LightningPosterior
    from bbh.adapters.lightning_callback import UncertaintyCallback

__all__ = [
    "AveragedNetwork",
    "BayesianTrainer",
    "ExportedPosterior",
    "LightningPosterior",
    "UncertaintyCallback",
    "export",
    "foolbox_model",
    "load_pretrained",
    "push_to_hub",
    "save_pretrained",
]
_WHERE = {
    "BayesianTrainer": "bbh.adapters.hugging_face",
    "LightningPosterior": "bbh.adapters.lightning",
    "UncertaintyCallback": "bbh.adapters.lightning_callback",
}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'bbh.adapters' has no attribute {name!r}")
    return getattr(importlib.import_module(_WHERE[name]), name)


def __dir__() -> list[str]:
    return __all__
