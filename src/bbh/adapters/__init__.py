"""Adapters that make posteriors usable in other libraries."""

from bbh.adapters.averaged import AveragedNetwork, foolbox_model

__all__ = ["AveragedNetwork", "foolbox_model"]
