"""Tables in Markdown."""

from collections.abc import Sequence


def pipe_table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    r"""A table in Markdown with all but the first column aligned to the right.

    >>> print(pipe_table(["", "time [s]"], [["MAP", "2.0"]]), end="")
    |  | time \[s\] |
    | --- | ---: |
    | MAP | 2.0 |
    """
    titles = [title.replace("[", r"\[").replace("]", r"\]") for title in titles]
    lines = [titles, ["---", *["---:"] * (len(titles) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"
