"""Experiments: clients of the library, imported by nothing but the command line."""
