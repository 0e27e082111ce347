"""The one confidence level: every interval, its width in standard errors, and the words of pages and tables follow it.

Elsewhere only what the field fixes is stated by number: the two contours of a knee, the bands of a limit.
"""

from __future__ import annotations

from scipy.special import ndtri

LEVEL = 0.95
"""Of central intervals, and of one-sided limits."""
LEVEL_TEXT = f"{100 * LEVEL:g} %"
TAIL_TEXT = f"{50 + 50 * LEVEL:g} %"
"""Level of one end of a central interval, taken as a limit."""
CHI_SQUARE_LEVELS = (1.0, 3.841459)
"""Rise of chi-square over its minimum within which one parameter lies with 68 and 95 %."""


def standard_errors(level: float = LEVEL) -> float:
    """Return the half width of a central interval of a normal law, in standard errors."""
    return float(ndtri(0.5 + level / 2))
