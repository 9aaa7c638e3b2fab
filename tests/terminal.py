"""What a command printed, however wide the terminal was."""

# Rich frames usage errors and tables with these.
_FRAMES = dict.fromkeys(map(ord, "╭╮╰╯─│┌┐└┘┏┓┗┛━┃┡┩├┤┼┴┬╇╈|+"), " ")


def unwrapped(output: str) -> str:
    """The words of ``output`` on one line: neither frames nor line breaks between them.

    Words that are longer than a line, such as paths, stay broken; ``squeezed`` joins them.
    """
    return " ".join(output.translate(_FRAMES).split())


def squeezed(text: str) -> str:
    """All that is printed and no blanks, for paths: a line may end anywhere within them."""
    return "".join(unwrapped(text).split())
