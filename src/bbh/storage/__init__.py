"""Posteriors in files: tensors as safetensors, everything else as JSON; nothing is executed."""

from bbh.storage.files import StorageError, load, save

__all__ = ["StorageError", "load", "save"]
