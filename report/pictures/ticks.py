"""Labels of logarithmic axes in plain letters: matplotlib's formulas take many times as long to draw."""

from __future__ import annotations

import re

from matplotlib.ticker import LogFormatterSciNotation

RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_FORMULA = re.compile(r"\$\\mathdefault\{(?:(.+)\\times)?10\^\{(-?\d+)\}\}\$")
"""How matplotlib writes a power of ten."""


def power_of_ten(exponent: int) -> str:
    """Return 10 to an exponent, as 10⁻³."""
    return f"10{str(exponent).translate(RAISED)}"


class PowerLabels(LogFormatterSciNotation):
    """Labels the ticks that matplotlib's formatter of logarithmic axes labels, as 10³ and 2×10³."""

    def __call__(self, x: float, pos: int | None = None) -> str:
        """Return the label of a tick, empty where there is none."""
        label = super().__call__(x, pos)
        found = _FORMULA.fullmatch(label)
        if found is None:
            return label
        factor, exponent = found.groups()
        return (f"{factor}×" if factor else "") + power_of_ten(int(exponent))
