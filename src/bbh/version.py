"""The version of the library, in a module without imports so that any module can use it."""

__version__ = "0.2.0.dev0"
