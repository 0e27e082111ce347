"""The shower front in the stations' arrival times: direction, curvature, thickness, residuals.

Only tables of sets with times (``arrival_ns.npy``) have this group. The front is that of
:mod:`showerstack.showers.front`, about the core of the lateral fit. A station's time belongs to its e/gamma detectors
(in an array of muon detectors alone to these), and counts where they have a signal.
"""

from __future__ import annotations

import math
from typing import Any

from showerstack.features.groups import OURS, Feature, FittedEvents, Group, row
from showerstack.features.lateral.elementwise import clip_symmetric, defined, within
from showerstack.showers.front import Front, FrontModel, fit_front

GROUP = "times"
GROUPS = (Group(GROUP, "the shower front in the arrival times, where there are some", ("all",), needs_fits=True),)
AZIMUTH = "front_azimuth_deg"
LINSLEY = "J. Linsley, J. Phys. G 12 (1986) 51"
ICETOP = "R. Abbasi et al., Nucl. Instrum. Meth. A 700 (2013) 188"
PER_KM, MAX_PER_KM = 1000.0, 200.0
MAX_NS = 1e5
MAX_RATIO = 1e3
PIECE_EVENTS = 16_384
"""Events of a GPU's chunk that are fitted at once: some thirty planes are in memory."""
AT_LEAST = {"front_chi2": 5, "front_thickness": 5, "front_curvature_per_km": 5, "front_curvature_error_per_km": 5}
"""Times below which these are not defined: a front that fits three or four exactly says nothing of them."""

# fmt: off
FEATURES: tuple[Feature, ...] = (
    row("front_stations", "1", 0, 1e6, "stations with a time", "count", GROUP, OURS),
    row("front_zenith_deg", "deg", 0, 90, "zenith angle of the front",
        "asin sqrt(u^2 + v^2) of the curved front; NaN with fewer than 3 times or u^2 + v^2 > 1", GROUP, ICETOP),
    row(AZIMUTH, "deg", 0, 360, "azimuth of the front's origin, from +x towards +y", "atan2(v, u)", GROUP, ICETOP),
    row("front_error_deg", "deg", 0, 360, "error of the front's direction",
        "sqrt(var zenith + sin^2(zenith) var azimuth)", GROUP, OURS),
    row("front_zenith_error_deg", "deg", 0, 180, "error of the front's zenith angle",
        "inverse of the weighted normal matrix, times the residuals' width", GROUP, OURS),
    row("front_minus_ze_deg", "deg", -90, 90, "zenith angle of the front minus the reconstructed one",
        "front_zenith_deg - Ze", GROUP, OURS),
    row("front_curvature_per_km", "km^-1", -200, 200, "curvature of the front",
        "1/R of r^2/(2 c R), prior 1/(3.46 km) with that spread; NaN with fewer than 5 times", GROUP, ICETOP),
    row("front_curvature_error_per_km", "km^-1", 0, 200, "error of front_curvature_per_km",
        "as front_zenith_error_deg", GROUP, OURS),
    row("front_thickness", "1", 0, MAX_RATIO, "thickness of the front over that of a mean shower",
        "sqrt(max(0, sum w (d^2 - clock^2)) / sum w (sigma(r)/n)^2), w robust, d residuals, "
        "sigma(r) = 2.6 ns (1 + r/30 m)^1.5; NaN with fewer than 5 times", GROUP, LINSLEY),
    row("front_rms_ns", "ns", 0, MAX_NS, "rms of the times about the curved front",
        "sqrt(mean d^2) without stations 5 errors away", GROUP, OURS),
    row("front_plane_rms_ns", "ns", 0, MAX_NS, "rms of the times about the plane", "as front_rms_ns", GROUP, OURS),
    row("front_chi2", "1", 0, 1e4, "quality of the curved front",
        "sum w d^2 / (clock^2 + (sigma(r)/n)^2) / (sum w - 3), w robust", GROUP, OURS),
    row("front_outlier_share", "1", 0, 1, "share of the times that are far from the front",
        "1 - sum w / front_stations", GROUP, OURS),
    row("front_latest_ns", "ns", -MAX_NS, MAX_NS, "latest time about the curved front", "max d", GROUP, OURS),
    row("front_earliest_ns", "ns", -MAX_NS, MAX_NS, "earliest time about the curved front", "min d", GROUP, OURS),
)
# fmt: on


def compute(fitted: FittedEvents) -> dict[str, Any]:
    """Return the features of this group, each (n,) float32; NaN with fewer than three times, none without times."""
    events, xp = fitted.events, fitted.xp
    if events.times_ns is None:
        return {}
    response, here = events.response, events.stations
    if events.array.has_electron.any():
        particles = events.electron_mev * (1.0 / response.electron_deposit_mev)
    else:
        particles = events.muon_mev * (1.0 / response.muon_deposit_mev)
    unit = events.array.fit_unit_m
    core_x_m, core_y_m = (core * unit for core in fitted.fit.electron[:2])
    model = FrontModel(**events.array.card.times)
    pieces = []
    for start in range(0, len(events), PIECE_EVENTS):
        part = slice(start, start + PIECE_EVENTS)
        front = fit_front(
            events.times_ns[part], particles[part], here.x_m * unit, here.y_m * unit, core_x_m[part], core_y_m[part],
            model=model, xp=xp,
        )  # fmt: skip
        pieces.append(_columns(front, model, events.zenith_deg[part], xp))
    if len(pieces) == 1:
        return pieces[0]
    return {name: xp.concat([piece[name] for piece in pieces]) for name in pieces[0]}


def _columns(front: Front, model: FrontModel, reconstructed_deg: Any, xp: Any) -> dict[str, Any]:
    is_fitted = xp.isfinite(front.width)
    zenith, azimuth = front.zenith_azimuth_deg(xp)
    zenith_error, azimuth_error = front.errors_deg(xp)
    sine = xp.sin(zenith * (math.pi / 180.0))
    near = xp.astype(front.trust > 0.0, xp.float32)
    count = xp.where(is_fitted, xp.sum(near, axis=1), 1.0)

    def rms(residual: Any) -> Any:
        return xp.sqrt(xp.sum(near * residual * residual, axis=1) / xp.where(count > 0.0, count, 1.0))

    clock, d = model.resolution_ns**2, front.residual_ns
    late = front.expected_late_ns * front.expected_late_ns
    square = front.trust * d * d
    behind = xp.sum(square - front.trust * clock, axis=1)
    expected = xp.sum(front.trust * late, axis=1)
    kept = xp.sum(front.trust, axis=1)
    spare = kept - 3.0
    columns = {
        "front_zenith_deg": zenith,
        AZIMUTH: azimuth,
        "front_error_deg": within(xp.sqrt(zenith_error**2 + (sine * azimuth_error) ** 2), 0.0, 360.0, xp),
        "front_zenith_error_deg": within(zenith_error, 0.0, 180.0, xp),
        "front_minus_ze_deg": zenith - reconstructed_deg,
        "front_curvature_per_km": clip_symmetric(front.curvature_per_m * PER_KM, MAX_PER_KM, xp),
        "front_curvature_error_per_km": within(front.curvature_error_per_m * PER_KM, 0.0, MAX_PER_KM, xp),
        "front_thickness": within(xp.sqrt(_positive(behind, xp) / (expected + 1e-6)), 0.0, MAX_RATIO, xp),
        "front_rms_ns": within(rms(d), 0.0, MAX_NS, xp),
        "front_plane_rms_ns": within(rms(front.plane_residual_ns), 0.0, MAX_NS, xp),
        "front_chi2": within(
            xp.sum(square / (late + clock + 1e-6), axis=1) / xp.where(spare > 0.5, spare, 0.5), 0.0, 1e4, xp
        ),
        "front_outlier_share": within(1.0 - kept / xp.where(is_fitted, front.stations, 1.0), 0.0, 1.0, xp),
        "front_latest_ns": clip_symmetric(xp.max(xp.where(front.used, d, -math.inf), axis=1), MAX_NS, xp),
        "front_earliest_ns": clip_symmetric(xp.min(xp.where(front.used, d, math.inf), axis=1), MAX_NS, xp),
    }
    for name, values in columns.items():
        enough = is_fitted & (front.stations >= AT_LEAST.get(name, 3))
        columns[name] = xp.astype(defined(enough, values, xp), xp.float32)
    return {"front_stations": front.stations} | columns


def _positive(values: Any, xp: Any) -> Any:
    return xp.where(values > 0.0, values, 0.0)
