"""Adapters that make posteriors usable in other libraries.

Those for Lightning are imported when they are first used, since Lightning need not be installed.
"""

import importlib
from typing import TYPE_CHECKING, Any

from bbh.adapters.averaged import AveragedNetwork, foolbox_model
from bbh.adapters.export import ExportedPosterior, export

if TYPE_CHECKING:
    from bbh.adapters.lightning import LightningPosterior
    from bbh.adapters.lightning_callback import UncertaintyCallback

__all__ = [
    "AveragedNetwork",
    "ExportedPosterior",
    "LightningPosterior",
    "UncertaintyCallback",
    "export",
    "foolbox_model",
]
_WHERE = {
    "LightningPosterior": "bbh.adapters.lightning",
    "UncertaintyCallback": "bbh.adapters.lightning_callback",
}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'bbh.adapters' has no attribute {name!r}")
    return getattr(importlib.import_module(_WHERE[name]), name)


def __dir__() -> list[str]:
    return __all__
