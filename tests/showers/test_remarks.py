"""What the first events of an array say of dead detectors and directions; sound ones say nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from showerstack.showers.array import DetectorArray, lattice, square_clusters
from showerstack.showers.front import LIGHT_M_PER_NS, PUBLISHED
from showerstack.showers.remarks import dead_remarks, event_remarks
from showerstack.showers.response import PUBLISHED as DETECTORS

SIDE, PITCH_M, N = 6, 25.0, 300


def array_of(muons: float = 3.0) -> DetectorArray:
    x_m, y_m = lattice(SIDE, PITCH_M)
    areas = np.full((SIDE, SIDE), 2.0)
    return DetectorArray("field", PITCH_M, x_m, y_m, areas, muons * areas, square_clusters(SIDE, SIDE))


def showers(array: DetectorArray, seed: int) -> dict[str, Any]:
    """Return grids (N, R, C, 2) MeV, arrival times (N, R, C) ns and stated directions of an ordinary sky."""
    rng = np.random.default_rng(seed)
    zenith, azimuth = np.arcsin(np.sqrt(rng.uniform(0, 0.4, N))), rng.uniform(0, 2 * np.pi, N)
    u, v = (np.sin(zenith) * turn(azimuth) for turn in (np.cos, np.sin))
    core = rng.uniform(-0.7, 0.7, (2, N, 1, 1)) * array.half_side_m
    x, y = array.x_m - core[0], array.y_m - core[1]
    along = x * u[:, None, None] + y * v[:, None, None]
    r = np.sqrt(x**2 + y**2 - along**2)
    counts = [rng.poisson(n * area / (1 + r / 30) ** k) for n, k, area in
              ((60, 2.5, array.electron_area_m2), (3, 1.2, array.muon_area_m2))]  # fmt: skip
    means = DETECTORS.electron_deposit_mev, DETECTORS.muon_deposit_mev
    grids = np.stack([rng.gamma(2.0 * np.maximum(n, 0.5), mean / 2.0) * (n > 0)
                      for n, mean in zip(counts, means, strict=True)], axis=-1)  # fmt: skip
    late = PUBLISHED.late_ns(r) * rng.standard_exponential(r.shape) / np.maximum(counts[0], 1)
    times = np.where(counts[0] > 0, late - along / LIGHT_M_PER_NS + rng.normal(0, 1, r.shape), np.nan)
    return {"grids": grids.astype(np.float32), "times_ns": times,
            "scalars": {"Ze": np.degrees(zenith), "Az": np.degrees(azimuth)}}  # fmt: skip


@pytest.mark.parametrize("seed", range(20))
def test_a_sound_set_says_nothing(seed: int) -> None:
    for array in (array_of(), array_of(0.0)):
        drawn = showers(array, seed)
        assert event_remarks("a", array, **drawn) == []
        assert event_remarks("a", array, **(drawn | {"scalars": {}})) == []


@pytest.mark.parametrize("channels", [(0, 1), (0,), (1,)], ids=["stations", "e/gamma", "muons"])
def test_dead_detectors_are_named_by_their_places(channels: tuple[int, ...]) -> None:
    array, dead = array_of(), [(0, 0), (2, 3), (2, 2), (3, 3), (3, 2)]
    grids = showers(array, 1)["grids"]
    for row, column in dead:
        grids[:, row, column, list(channels)] = 0
    (said,) = dead_remarks("a", array, grids)
    kind = {2: "36 stations", 1: "36 e/gamma detectors" if channels[0] == 0 else "36 muon detectors"}[len(channels)]
    assert said.startswith(f"a: 5 of {kind} have no signal in 300 events")
    assert "(-62.5, -62.5), (-12.5, -12.5), (12.5, -12.5)" in said
    # Too few events to tell, and a station far from all others.
    assert dead_remarks("a", array, grids[:4]) == []
    x_m = array.x_m.copy()
    x_m[0, 0] = 5_000.0
    far = DetectorArray("far", PITCH_M, x_m, array.y_m, array.electron_area_m2, array.muon_area_m2, array.cluster)
    grids[:, 2:4] = showers(array, 2)["grids"][:, 2:4]
    assert dead_remarks("far", far, grids) == []


def test_times_in_ticks_and_directions_that_contradict_them() -> None:
    array = array_of()
    drawn = showers(array, 3)
    zenith, azimuth = (drawn["scalars"][name] for name in ("Ze", "Az"))

    def said(**changes: Any) -> str:
        (line,) = event_remarks("a", array, **(drawn | changes))
        return line

    for tick in (5.0, 8.0, 10.0):
        times = drawn["times_ns"] / tick
        assert "are times in ticks of a clock" in said(times_ns=times, scalars={})
        assert "are times in ticks of" in said(times_ns=times)
    assert (
        event_remarks("a", array, **(drawn | {"times_ns": drawn["times_ns"] / 8, "scalars": {}}), narrow_sky=True) == []
    )
    assert "are times in seconds?" in said(times_ns=drawn["times_ns"] * 1e-9)
    assert "is Ze the elevation?" in said(scalars={"Ze": 90 - zenith, "Az": azimuth})
    assert said(scalars={"Ze": zenith, "Az": (90 - azimuth) % 360}).endswith("give 90 deg - Az")
    assert said(scalars={"Ze": zenith, "Az": (azimuth + 180) % 360}).endswith("give Az - 180 deg")
