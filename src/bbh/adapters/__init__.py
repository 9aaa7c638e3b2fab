"""Adapters that make posteriors usable in other libraries."""

from bbh.adapters.averaged import AveragedNetwork, foolbox_model
from bbh.adapters.export import ExportedPosterior, export

__all__ = ["AveragedNetwork", "ExportedPosterior", "export", "foolbox_model"]
