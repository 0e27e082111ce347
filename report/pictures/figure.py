"""A figure that notebooks show by itself."""

from __future__ import annotations

import io

from matplotlib.figure import Figure

NOTEBOOK_DPI = 110


class ShownFigure(Figure):
    """A figure of matplotlib: of others, IPython shows a line of text until ``matplotlib.pyplot`` is imported."""

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        self.savefig(buffer, format="png", dpi=NOTEBOOK_DPI, facecolor="white")
        return buffer.getvalue()
