"""How pictures look, on paper, on a white page and on a dark one.

Pictures are drawn for a column of :data:`COLUMN_IN` and saved as inline SVG whose lines and letters take the page's own
text colour (``currentColor``), so that the same picture is legible in light and dark. Classes have the colours of
M. Okabe and K. Ito, "Color Universal Design" (2008), distinguishable with any colour vision, and markers of their own.
"""

from __future__ import annotations

import hashlib
import io
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from markupsafe import Markup

from showerstack.runtime.errors import escaped
from showerstack.runtime.files import atomic_path
from showerstack.showers.schema import COMPOSITION

if TYPE_CHECKING:  # half a second, and the same modules make tables for the terminal
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure

COLUMN_IN = 4.3
"""Width of a picture, inches: about 400 CSS pixels, the width of a phone."""
INK = "#102a31"
"""Colour of text and lines while drawing; becomes the page's text colour in SVG."""
PALETTE: tuple[str, ...] = ("#D55E00", "#E69F00", "#009E73", "#56B4E9", "#1C86C7", "#CC79A7", "#8a8a8a", "#F0E442")
"""Okabe-Ito, ordered from light to heavy primaries; its dark blue is lightened to be legible on a dark page."""
MARKERS: tuple[str, ...] = ("o", "s", "^", "D", "v", "P", "X", "*")
_RC: dict[Any, Any] = {
    "font.size": 8,
    "font.family": "DejaVu Sans",
    "axes.titlesize": 8.5,
    "axes.labelsize": 8,
    "xtick.labelsize": 7.5,
    "ytick.labelsize": 7.5,
    "legend.fontsize": 7.5,
    "legend.frameon": False,
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.7,
    "axes.grid": True,
    "grid.color": INK,
    "grid.alpha": 0.15,
    "grid.linewidth": 0.5,
    "lines.linewidth": 1.3,
    "lines.markersize": 4,
    "errorbar.capsize": 0,
    "svg.fonttype": "none",
    "svg.hashsalt": "showerstack",
    "figure.constrained_layout.use": True,
}


_ONE_AT_A_TIME = threading.RLock()


@cache
def colour_map() -> Colormap:
    """Return the colours of quantities: perceptually uniform, safe for colour-blind readers.

    The darkest part of cividis, which a dark page would swallow, is left out.
    """
    import matplotlib
    from matplotlib.colors import ListedColormap

    return ListedColormap(matplotlib.colormaps["cividis"](np.linspace(0.18, 1.0, 256)), name="cividis_visible")


@contextmanager
def drawing() -> Iterator[None]:
    """Apply the style to whatever is drawn inside, by one thread at a time; figures must also be saved inside.

    Matplotlib has one style for the process, and reads parts of it when a figure is saved.
    """
    import matplotlib

    with _ONE_AT_A_TIME:
        before = {name: matplotlib.rcParams[name] for name in _RC}
        matplotlib.rcParams.update(_RC)
        try:
            yield
        finally:
            matplotlib.rcParams.update(before)


@contextmanager
def one_plot(height_in: float, width_in: float = COLUMN_IN) -> Iterator[tuple[Figure, Axes]]:
    """Yield a figure and its only axes, in the style."""
    with drawing():
        figure = new_figure(height_in, width_in)
        yield figure, figure.add_subplot()


def new_figure(height_in: float = 3.0, width_in: float = COLUMN_IN, *, placed: bool = False) -> Figure:
    """Return an empty figure of column width; one whose axes are ``placed`` by the caller is drawn once, not twice."""
    from showerstack.report.pictures.figure import ShownFigure

    layout = "none" if placed else None  # matplotlib takes it, its types do not
    return ShownFigure(figsize=(width_in, height_in), layout=layout)  # type: ignore[arg-type]


def make_logarithmic(axes: Axes, which: str, **options: Any) -> None:
    """Make the axis ``"x"`` or ``"y"`` logarithmic, with powers of ten as labels; options of the scale."""
    from showerstack.report.pictures.ticks import PowerLabels

    set_scale, axis = (axes.set_xscale, axes.xaxis) if which == "x" else (axes.set_yscale, axes.yaxis)
    set_scale("log", **options)
    axis.set_major_formatter(PowerLabels())
    axis.set_minor_formatter(PowerLabels())


def places_of(names: Sequence[str]) -> list[int]:
    """Return the place of each group among colours and markers: of one of the five always the same, of others a free
    one, of which there are eight in all."""
    places = {name: COMPOSITION.classes.index(name) for name in names if name in COMPOSITION.classes}
    free = [place for place in range(len(PALETTE)) if place not in places.values()]
    for k, name in enumerate(name for name in names if name not in places):
        places[name] = free[k % len(free)]
    return [places[name] for name in names]


def name_rows(axes: Axes, names: Sequence[str]) -> None:
    """Name the rows 0, 1, ... of a picture, the first one on top."""
    axes.set_yticks(range(len(names)), [literal(name) for name in names])
    axes.set_ylim(len(names) - 0.5, -0.5)


def literal(name: str) -> str:
    """Return a name that a picture shows as it is: dollar signs open no formula, control characters are escaped."""
    return escaped(name).replace("$", r"\$")


def as_svg(figure: Figure, description: str) -> Markup:
    """Return the figure as an SVG element for a page, with an accessible description.

    Numbers of the picture keep their meaning without colour: see the marker and line styles of each drawing.
    """
    buffer = io.StringIO()
    with drawing():
        _lay_out(figure)
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None}, dpi=160)
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(re.escape(INK), "currentColor", text, flags=re.IGNORECASE)
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    # identifiers of different pictures on one page must not meet
    mark = hashlib.sha256((description + text).encode()).hexdigest()[:8]
    text = re.sub(r'id="([^"]+)"', rf'id="p{mark}\1"', text)
    text = re.sub(r'(href="#|url\(#)', rf"\1p{mark}", text)
    text = re.sub(
        r"<svg [^>]*?viewBox=\"([^\"]+)\"[^>]*>",
        lambda match: (
            f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
            f'viewBox="{match[1]}" role="img" aria-label="{escape(escaped(description))}">'
        ),
        text,
        count=1,
    )
    return Markup(text)


def _lay_out(figure: Figure) -> None:
    """Place the axes of a figure for good: matplotlib would draw the whole figure once more for it."""
    engine = figure.get_layout_engine()
    if engine is not None:
        engine.execute(figure)
        figure.set_layout_engine("none")


def save_figure(figure: Figure, out: Path) -> None:
    """Write the figure to a file of the format that its suffix names, on white, atomically."""
    with atomic_path(out) as temporary, drawing():
        _lay_out(figure)
        figure.savefig(temporary, dpi=200, facecolor="white")
