"""A Matplotlib figure that notebooks show, made without pyplot.

Matplotlib is imported at the top here, so this module is imported where a figure is made.
"""

from io import BytesIO

from matplotlib.figure import Figure

# Sharp on screens with small pixels, and some 50 kB in the notebook's file.
_DPI = 120


class ShownFigure(Figure):
    """A figure that is an image at the end of a notebook's cell.

    IPython knows how to show a figure only once pyplot is imported; it asks any other object for
    ``_repr_png_``.
    """

    def _repr_png_(self) -> tuple[bytes, dict[str, int]]:
        image = BytesIO()
        self.savefig(image, format="png", dpi=_DPI, metadata={"Software": None})
        width, height = (round(side * self.dpi) for side in self.get_size_inches())
        return image.getvalue(), {"width": width, "height": height}
