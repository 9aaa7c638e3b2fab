"""Help that people can read: flags and arguments without the names of Python's types."""

from typing import Any

from typer.core import TyperCommand, TyperGroup


class Command(TyperCommand):
    """A command whose help shows no types where words say everything."""

    def get_params(self, ctx: Any) -> list[Any]:
        """The options and arguments, as the help and the parser take them."""
        return [_plain(one) for one in super().get_params(ctx)]


class Group(TyperGroup):
    """A group of commands whose help shows no types where words say everything."""

    def get_params(self, ctx: Any) -> list[Any]:
        """The options, as the help and the parser take them."""
        return [_plain(one) for one in super().get_params(ctx)]


def _plain(parameter: Any) -> Any:
    """A flag without ``<bool>``, and an argument without ``<str>`` beside its own name."""
    if getattr(parameter, "is_flag", False):
        parameter.metavar = ""
    elif parameter.param_type_name == "argument":
        parameter.display_type_rich = _no_type  # read by newer releases of Typer only
    return parameter


def _no_type(ctx: Any) -> None:
    return None
