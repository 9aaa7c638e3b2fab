"""Saves posteriors to files: tensors as safetensors, all else as JSON; loading runs no code."""

from bbh.storage.files import StorageError, load, save

__all__ = ["StorageError", "load", "save"]
