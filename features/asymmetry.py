"""How uneven the signal is around the axis: LCm, tail sums, dipole and quadrupole of the residuals.

Hadron showers are clumped by sub-showers and single muons; photon showers are smooth. Expectations come from the
fit, so that nothing has to be trained.
"""

from __future__ import annotations

import math
from typing import Any

from features.bounds import LG_E, decay, defined, held
from features.events import Events
from features.feature import Feature
from features.frame import Frame
from features.rings import ring_masks, ring_sums

GROUP = "asymmetry"
HERE = "this project"
LCM = "R. Conceicao et al., arXiv:2204.12337, 2304.02988"
TAIL = "R. Conceicao et al., arXiv:2309.17217; Wilson-Hilferty tail of the compound Poisson"
LCM_RINGS_M = ((25.0, 50.0), (50.0, 80.0), (80.0, 120.0))
ALPHAS = (0.5, 1.0, 2.0)
"""Exponents of the survival term -lg(tail probability)."""
MAX_EXCESS = 10.0
CHANNELS = (("e", "e/gamma"), ("mu", "muon"))


def _declare() -> tuple[Feature, ...]:
    columns = []
    for channel, words in CHANNELS:
        for low, high in LCM_RINGS_M:
            ring = f"{int(low)}_{int(high)}"
            columns += [
                Feature(
                    f"lcm_{channel}_{ring}",
                    "lg",
                    f"LCm of the {words} signals, {int(low)} to {int(high)} m",
                    "lg(2/(n(n-1)) sum (S_i - S_j)^2 / <S>)",
                    LCM,
                    GROUP,
                    -20,
                    12,
                ),
                Feature(
                    f"lcm_{channel}_{ring}_excess",
                    "lg",
                    f"the same over the fit's expectation, {int(low)} to {int(high)} m",
                    "lg(sum (S_i - S_j)^2 / expected)",
                    LCM,
                    GROUP,
                    -20,
                    20,
                ),
            ]
        columns += [
            Feature(
                f"tail_{channel}_{alpha:g}".replace(".", ""),
                "1",
                f"tail sum of the {words} stations beyond 42 m, alpha = {alpha:g}",
                f"mean of (-lg P(S >= seen))^{alpha:g}",
                TAIL,
                GROUP,
                0,
                1e4,
            )
            for alpha in ALPHAS
        ]
        columns += [
            Feature(
                f"dipole_{channel}",
                "1",
                f"dipole of the {words} residuals around the axis",
                "|sum z exp(i phi)| / sqrt(n)",
                HERE,
                GROUP,
                0,
                1e4,
            ),
            Feature(
                f"quadrupole_{channel}",
                "1",
                f"quadrupole of the {words} residuals",
                "|sum z exp(2 i phi)| / sqrt(n)",
                HERE,
                GROUP,
                0,
                1e4,
            ),
            Feature(
                f"dipole_{channel}_azimuth",
                "1",
                f"dipole of the {words} residuals along the shower's azimuth",
                "sum z cos(phi - azimuth) / sqrt(n)",
                HERE,
                GROUP,
                -1e4,
                1e4,
            ),
        ]
    columns.append(
        Feature(
            "centroid_core_m",
            "m",
            "centroid of ln(1 + e/gamma) to the fitted core",
            "distance on the ground",
            HERE,
            GROUP,
            0,
            300,
        )
    )
    return tuple(columns)


FEATURES: tuple[Feature, ...] = _declare()
TAIL_FROM_M = 42.0


def compute(events: Events, frame: Frame, core: tuple[Any, Any]) -> dict[str, Any]:
    """Return the features of this group, each (n,) float32; NaN without a fit, or with fewer than 2 stations in a ring.

    Parameters
    ----------
    core
        Fitted core x and y, (n,) each.
    """
    xp, here, measured = events.xp, events.stations, frame.measured
    live_e = xp.astype(measured.electron_area_m2 > 0.0, xp.float32)
    live_m = xp.astype(measured.muon_area_m2 > 0.0, xp.float32)
    planes = {
        "e": (measured.electron, frame.electron_expected, frame.electron_variance, live_e),
        "mu": (measured.muon, frame.muon_expected, frame.muon_variance, live_m),
    }
    angles = _angles(events, core)
    masks = ring_masks(frame.r_m, LCM_RINGS_M, xp)
    columns: dict[str, Any] = {}
    for channel, (seen, expected, variance, live) in planes.items():
        products = [live, seen, seen * seen, expected, expected * expected, variance]
        columns.update(_lcm(channel, ring_sums(masks, products, xp), frame, xp))
        columns.update(_residuals(channel, seen, expected, variance, live, frame, angles, xp))
    weight = xp.log1p(events.electron_mev)
    total = xp.sum(weight, axis=1) + 1e-20
    gap_x = xp.sum(weight * here.x_m, axis=1) / total - core[0]
    gap_y = xp.sum(weight * here.y_m, axis=1) / total - core[1]
    columns["centroid_core_m"] = xp.sqrt(gap_x * gap_x + gap_y * gap_y)
    return {name: defined(frame.fitted, values, xp) for name, values in columns.items()}


def _angles(events: Events, core: tuple[Any, Any]) -> tuple[Any, Any]:
    """Return cosine and sine of each station's angle around the core, counted from the shower's azimuth."""
    xp, here = events.xp, events.stations
    x, y = (xp.where(c == c, c, xp.zeros_like(c))[:, None] for c in core)
    dx, dy = here.x_m - x, here.y_m - y
    azimuth = events.azimuth_deg * (math.pi / 180.0)
    cosine, sine = xp.cos(azimuth)[:, None], xp.sin(azimuth)[:, None]
    length = xp.sqrt(dx * dx + dy * dy) + 1e-3
    return (dx * cosine + dy * sine) / length, (dy * cosine - dx * sine) / length


def _lcm(channel: str, sums: list[Any], frame: Frame, xp: Any) -> dict[str, Any]:
    """LCm per ring: sum over pairs of (S_i - S_j)^2 is n sum S^2 - (sum S)^2.

    Parameters
    ----------
    sums
        Per ring, (n, rings) each: stations, sum S, sum S^2, sum of expectations, of their squares, and of variances.
    """
    n, total, square, mean, mean_square, spread = sums
    pairs = xp.maximum(n * square - total * total, xp.zeros_like(n))
    predicted = n * (spread + mean_square) - spread - mean * mean
    enough = (n >= 2.0) & (total > 0.0)
    norm = xp.where(enough, 0.5 * (n - 1.0) * total, xp.ones_like(n))
    value = defined(enough, xp.log(pairs / norm + 1e-12) * LG_E, xp)
    ratio = (pairs + 1e-6) / (xp.maximum(predicted, xp.zeros_like(n)) + 1e-6)
    excess = defined(enough, held(xp.log(ratio) * LG_E, MAX_EXCESS, xp), xp)
    columns = {}
    for k, (low, high) in enumerate(LCM_RINGS_M):
        columns[f"lcm_{channel}_{int(low)}_{int(high)}"] = value[:, k]
        columns[f"lcm_{channel}_{int(low)}_{int(high)}_excess"] = excess[:, k]
    return columns


def _residuals(
    channel: str, seen: Any, expected: Any, variance: Any, live: Any, frame: Frame, angles: tuple[Any, Any], xp: Any
) -> dict[str, Any]:
    one = xp.ones_like(seen)
    deviate = (seen - expected) / xp.sqrt(variance + 1e-6)
    far = live * xp.astype(frame.r_m > TAIL_FROM_M, xp.float32)
    n = xp.sum(far, axis=1) + 1e-6
    tail = minus_lg_tail(seen, expected, variance, xp) * far
    columns = {f"tail_{channel}_{ALPHAS[1]:g}": xp.sum(tail, axis=1) / n}
    columns[f"tail_{channel}_05"] = xp.sum(xp.sqrt(tail), axis=1) / n
    columns[f"tail_{channel}_2"] = xp.sum(tail * tail, axis=1) / n
    # Residuals are bounded so that one badly described station near the axis does not make the pattern.
    bounded = xp.minimum(xp.maximum(deviate, -5.0 * one), 5.0 * one) * live
    root = xp.sqrt(xp.sum(live * one, axis=1))
    cosine, sine = angles
    first, second = xp.sum(bounded * cosine, axis=1), xp.sum(bounded * sine, axis=1)
    double_c, double_s = cosine * cosine - sine * sine, 2.0 * cosine * sine
    third, fourth = xp.sum(bounded * double_c, axis=1), xp.sum(bounded * double_s, axis=1)
    columns[f"dipole_{channel}"] = xp.sqrt(first * first + second * second) / root
    columns[f"quadrupole_{channel}"] = xp.sqrt(third * third + fourth * fourth) / root
    columns[f"dipole_{channel}_azimuth"] = first / root
    return columns


def minus_lg_tail(seen: Any, expected: Any, variance: Any, xp: Any) -> Any:
    """Return -lg P(S >= seen) of a compound Poisson signal, by Wilson and Hilferty's cube root.

    With k = mean^2 / variance, z = 3 sqrt(k) [(S/mean)^(1/3) - 1 + 1/(9k)] is nearly normal; the normal tail is
    taken as exp(-z^2/2 - ...) in the logistic-like form ln P = -ln(1 + exp(1.5976 z + 0.07056 z^3)).
    """
    mean = expected + 1e-6
    k = mean * mean / (variance + 1e-6)
    ratio = seen / mean
    root = xp.exp(xp.log(xp.maximum(ratio, xp.ones_like(ratio) * 1e-12)) * (1.0 / 3.0))
    z = 3.0 * xp.sqrt(k) * (root - 1.0 + 1.0 / (9.0 * k))
    z = xp.minimum(z, xp.ones_like(z) * 12.0)
    exponent = z * (1.5976 + 0.07056 * z * z)
    tail = (xp.maximum(exponent, xp.zeros_like(exponent)) + xp.log1p(decay(xp.abs(exponent), xp))) * LG_E
    return tail * xp.astype(seen > 0.0, xp.float32)
