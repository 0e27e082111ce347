"""Numbers with their intervals, as they read."""

from __future__ import annotations

from scoring import Metric
from scoring.uncertainty.intervals import Interval, Paired


def plus_minus(value: float, interval: Interval, digits: int, scale: float = 1.0) -> str:
    """Return ``value ± half the interval's width``, for intervals that are symmetric enough."""
    return f"{scale * value:.{digits}f} ± {scale * (interval.high - interval.low) / 2:.{digits}f}"


def short(value: float) -> str:
    """Return a small share in scientific notation without padding: ``3.2e-4``, and ``0`` for none."""
    if value == 0:
        return "0"
    mantissa, exponent = f"{value:.1e}".split("e")
    return f"{mantissa}e{int(exponent)}"


def signed(value: float) -> str:
    """Return :func:`short` with its sign."""
    return ("-" if value < 0 else "+") + short(abs(value))


def metric_text(value: float, interval: Interval, metric: Metric) -> str:
    """Return a metric with its 95 % interval, as short as its shape allows."""
    if metric.logarithmic:
        return f"{short(value)} [{short(interval.low)}, {short(interval.high)}]"
    return plus_minus(value, interval, 4)


def difference_text(found: Paired, metric: Metric) -> str:
    """Return a difference with its interval."""
    if metric.logarithmic:
        return " ".join([signed(found.difference), f"[{signed(found.interval.low)}, {signed(found.interval.high)}]"])
    return f"{found.difference:+.4f} [{found.interval.low:+.4f}, {found.interval.high:+.4f}]"
