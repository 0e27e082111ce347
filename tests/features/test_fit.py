"""Known showers come back: minima, errors, convergence; and minima, values and matrices are Minuit's.

CUDA kernels are tested without a GPU: NVRTC compiles them, and as C++ on the CPU they give the numbers of the CPU's.
"""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.speed.gpu import CHANNELS, fit_gaps
from showerstack.features.device import decode_float16, namespace
from showerstack.features.groups import FittedEvents, lateral
from showerstack.features.lateral import fit
from showerstack.features.lateral.cuda import OPTIONS
from showerstack.features.lateral.events import make_events
from showerstack.features.lateral.fit import N_NUMBERS, RECORD, RawFit, fit_cuda, fit_fused, kernel_source, record_in_c
from showerstack.features.stations import grid, on_cpu
from showerstack.features.stations.cuda import kernel_source as sum_source
from showerstack.features.stations.on_cpu import sum_fused
from showerstack.runtime.errors import InputError
from showerstack.showers.array import KASCADE, DetectorArray
from showerstack.showers.response import PUBLISHED
from tests.features.oracle import Oracle, full
from tests.features.reference import sum_reference

XP = namespace("cpu")
GOLDEN = Path(__file__).with_name("golden_fits.npz")
"""Cells above zero (place among n x 16 x 16 x 2, MeV), reconstructed scalars (n, 5) and fits (n, 25)."""


@pytest.fixture(scope="module")
def fitted(drawn):
    """Features of the fits of all drawn showers."""
    events = drawn.events(XP)
    raw = fit_fused(events)
    return raw, lateral.compute(FittedEvents.given(events, raw, sum_reference(events, raw)))


@pytest.mark.parametrize(
    ("feature", "error", "truth", "mean", "width"),
    [
        ("fit_lg_ne", "fit_lg_ne_err", "lg_ne", 0.12, (0.9, 1.2)),
        ("fit_age", "fit_age_err", "age", 0.15, (0.9, 1.2)),
        ("fit_lg_nmu", "fit_lg_nmu_err", "lg_nmu", 0.12, (0.8, 1.2)),
    ],
)
def test_pulls(drawn, fitted, feature, error, truth, mean, width):
    many = drawn.hits > 40
    pull = ((fitted[1][feature] - drawn.truth[truth].to_numpy()) / fitted[1][error])[many]
    pull = pull[np.abs(pull) < 5]  # a handful of second minima
    assert many.sum() > 3_900
    assert pull.size > 0.995 * many.sum()
    assert abs(pull.mean()) < mean
    assert width[0] < pull.std() < width[1]


def test_size_beyond_the_age_limit_has_the_error_of_the_density_alone(draw):
    # The size is quoted with the age 1.5 there, so the age's error must not enter that of the size.
    old = draw(1_500, seed=21, lg_ne=(5.4, 6.2), age=1.75)
    events = old.events(XP)
    raw = fit_fused(events)
    columns = lateral.compute(FittedEvents.given(events, raw, sum_reference(events, raw)))
    beyond = columns["fit_age"] > lateral.MAX_AGE
    assert beyond.mean() > 0.94
    pull = ((columns["fit_lg_ne"] - old.truth["lg_ne"].to_numpy()) / columns["fit_lg_ne_err"])[beyond]
    assert abs(np.median(pull)) < 0.4
    assert 0.8 < pull[np.abs(pull) < 5].std() < 1.35


def test_core_pulls(drawn, fitted):
    raw, columns = fitted
    many = drawn.hits > 40
    gap = [
        np.asarray(raw.electron[k]) - drawn.truth[name].to_numpy() for k, name in enumerate(("core_x_m", "core_y_m"))
    ]
    pull = np.stack(gap) / (columns["fit_core_err_m"] / np.sqrt(2))
    pull = pull[:, many & (np.abs(pull).max(axis=0) < 5)]
    assert np.all(np.abs(pull.mean(axis=1)) < 0.1)
    assert 0.9 < pull.std() < 1.2
    assert np.quantile(np.hypot(*gap)[many], 0.68) < 1.3


def test_nearly_all_converge(fitted):
    assert fitted[1]["fit_converged"].mean() > 0.999


def test_deviance_is_near_one_per_degree_of_freedom(drawn, fitted):
    bright = drawn.hits > 200
    assert 0.8 < np.median(fitted[1]["fit_deviance_e"][bright]) < 1.15


@pytest.fixture(scope="module")
def faint(draw):
    """Showers near the trigger threshold, where a core on a station makes Fisher's matrix a poor guide."""
    return draw(2_000, seed=12, lg_ne=(3.6, 4.6))


def test_faint_showers_converge_too(faint):
    raw = fit_fused(faint.events(XP, slice(None)))
    assert np.nanmean(raw.electron_converged) > 0.999
    assert np.nanmean(raw.muon_converged) > 0.999


@pytest.mark.parametrize("array", [KASCADE, KASCADE.without([20, 105], [3, 200])], ids=["whole", "damaged"])
def test_fits_without_strays_are_those_with_few(drawn, array):
    grids, scalars = decode_float16(drawn.matrices[:200].copy()), drawn.scalars[:200]
    none, few = (
        fit_fused(make_events(XP, grids, scalars, PUBLISHED._replace(electron_strays=share, muon_strays=share), array))
        for share in (0.0, 1e-6)
    )
    assert none.electron_converged.all(), "cells without a station say nothing, strays or none"
    assert none.muon_converged.all()
    np.testing.assert_allclose(none.electron, few.electron, rtol=2e-3, atol=0.05)
    np.testing.assert_allclose(none.muon, few.muon, rtol=2e-3, atol=0.02)


def test_arrays_with_as_many_stations_as_parameters_have_features(drawn):
    corners, with_muons = (17, 30, 225, 238), (17, 30)
    rest = [[cell for cell in KASCADE.cells if cell not in kept] for kept in (corners, with_muons)]
    array = KASCADE.without(*rest)
    assert (array.n_stations, array.n_muon_detectors) == (4, 2)
    grids = decode_float16(drawn.matrices[:200].copy())
    columns = lateral.compute(FittedEvents(make_events(XP, grids, drawn.scalars[:200], array=array)))
    for name in ("fit_deviance_e", "fit_deviance_mu"):
        assert np.isfinite(columns[name]).any()
        assert np.nanmin(columns[name]) >= 0.0


N_ORACLE = 60


@pytest.fixture(scope="module", params=["drawn", "faint"])
def held_against_minuit(request):
    """Fits of some showers, with Minuit's minima and Fisher's matrices of the same event."""
    events = request.getfixturevalue(request.param).events(XP, slice(0, N_ORACLE))
    raw = fit_fused(events)
    fitted = np.flatnonzero(~np.isnan(raw.electron[0]))
    return raw, [(k, Oracle(events, raw, k)) for k in fitted]


@pytest.mark.parametrize(("channel", "size"), [("electron", 4), ("muon", 2)])
def test_minima_and_matrices_are_minuits(held_against_minuit, channel, size):
    raw, oracles = held_against_minuit
    assert len(oracles) > 0.9 * N_ORACLE
    gaps, rises, value_gaps, matrix_gaps = [], [], [], []
    for k, oracle in oracles:
        result = oracle.found[channel == "muon"]
        best, lowest = oracle.minimum(channel)
        fisher = oracle.fisher(channel, result)
        gaps.append(np.abs(result - best) / np.sqrt(np.diag(np.linalg.inv(fisher))))
        here = oracle.electron_value(*result) if channel == "electron" else oracle.muon_value(*result)
        rises.append(here - lowest)
        value_gaps.append(abs(float(getattr(raw, f"{channel}_value")[k]) - here) / max(here, 1.0))
        unit = np.sqrt(np.diag(fisher))
        matrix_gaps.append(np.abs(full(getattr(raw, f"{channel}_fisher"), size, k) - fisher) / np.outer(unit, unit))
    # In units of errors, and of the matrix' own diagonal: the weights were frozen one minimisation earlier.
    assert np.quantile(gaps, 0.5, axis=0).max() < 0.03
    assert np.quantile(gaps, 0.95, axis=0).max() < 0.25
    assert np.quantile(rises, 0.95) < 0.02
    assert np.quantile(value_gaps, 0.95) < 0.04
    assert np.quantile(matrix_gaps, 0.5, axis=0).max() < 0.01
    assert np.quantile(matrix_gaps, 0.95, axis=0).max() < 0.1


def test_fits_are_those_of_the_kernel_with_the_libraries_logarithms():
    # 80 simulated showers under the test's cuts and 80 without, fitted before logarithms and exponentials became cheap.
    with np.load(GOLDEN) as stored:
        cells = np.zeros(len(stored["scalars"]) * 512, dtype=np.float16)
        cells[stored["cell"]] = stored["mev"]
        before, scalars = stored["numbers"], stored["scalars"].astype(np.float32)
    raw = fit_fused(make_events(XP, decode_float16(cells.reshape(-1, 16, 16, 2)), scalars))
    old = RawFit.from_numbers(before)
    fitted = ~np.isnan(old.electron[0])
    assert fitted.sum() > 150
    np.testing.assert_array_equal(~np.isnan(raw.electron[0]), fitted)
    gaps = []
    for channel, size in (("electron", 4), ("muon", 2)):
        flag = f"{channel}_converged"
        np.testing.assert_array_equal(getattr(raw, flag)[fitted], getattr(old, flag)[fitted])
        for k in np.flatnonzero(fitted):
            errors = np.sqrt(np.diag(np.linalg.inv(full(getattr(old, f"{channel}_fisher"), size, k))))
            now, then = (np.array([float(p[k]) for p in getattr(one, channel)]) for one in (raw, old))
            gaps += list(np.abs(now - then) / errors)
    assert np.median(gaps) < 1e-4
    assert np.quantile(gaps, 0.999) < 0.01


def test_records_survive_the_round_trip():
    numbers = np.arange(3 * N_NUMBERS, dtype=np.float32).reshape(3, N_NUMBERS)
    raw = RawFit.from_numbers(numbers)
    np.testing.assert_array_equal(np.stack(raw.columns(), axis=1), numbers)
    records = raw.records()
    assert records.dtype == RECORD
    np.testing.assert_array_equal(records["muon"], np.stack(raw.muon, axis=1))
    np.testing.assert_array_equal(records["electron_fisher"], np.stack(raw.electron_fisher, axis=1))
    assert record_in_c().startswith(
        "struct RawFit { float electron[4]; float electron_fisher[10]; float electron_value;"
    )
    assert record_in_c().endswith("float muon_converged; };")


def test_saturated_stations_are_lower_limits(draw):
    bright = draw(300, seed=5, lg_ne=(6.2, 6.6))
    assert (bright.matrices[..., 0].astype(np.float32) >= 30_000).any(axis=(1, 2)).mean() > 0.2
    events = bright.events(XP)
    raw = fit_fused(events)
    columns = lateral.compute(FittedEvents.given(events, raw, sum_reference(events, raw)))
    gap = columns["fit_lg_ne"] - bright.truth["lg_ne"].to_numpy()
    assert abs(np.median(gap)) < 0.01
    assert np.quantile(np.abs(gap), 0.95) < 0.08
    # A deposit above the limit counts as the limit, whatever the electronics reported.
    values = replace(bright, matrices=np.minimum(bright.matrices, np.array([30_000, 15_000], np.float16)))
    again = fit_fused(values.events(XP))
    np.testing.assert_array_equal(np.stack(raw.electron), np.stack(again.electron))


def test_background_of_muons_matters(draw):
    # Old, faint showers far out: without the muon background in the e/gamma channel N_e would come out too large.
    faint = draw(1_500, seed=8, lg_ne=(4.5, 4.8))
    events = faint.events(XP)
    raw = fit_fused(events)
    columns = lateral.compute(FittedEvents.given(events, raw, sum_reference(events, raw)))
    pull = (columns["fit_lg_ne"] - faint.truth["lg_ne"].to_numpy()) / columns["fit_lg_ne_err"]
    assert abs(np.median(pull)) < 0.15


N = 400


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["sm_75", "sm_90", "sm_100"])
@pytest.mark.parametrize("text_of", [kernel_source, sum_source])
def test_nvrtc_compiles_the_kernels_without_spills(text_of, architecture):
    nvrtc, text = pytest.importorskip("cupy.cuda").nvrtc, text_of(PUBLISHED).text
    program = nvrtc.createProgram(text, "kernel.cu", [], [])
    # As CuPy compiles them; ptxas tells what does not fit into registers.
    options = [*OPTIONS, "-ftz=true", f"--gpu-architecture={architecture}", "--ptxas-options=-v"]
    try:
        nvrtc.compileProgram(program, options)
    except nvrtc.NVRTCError:
        pytest.fail(nvrtc.getProgramLog(program))
    spills = re.findall(r"(\d+) bytes spill (?:stores|loads)", nvrtc.getProgramLog(program))
    assert len(spills) == 2 * text.count("\nFOR_EVENTS(")
    assert set(spills) == {"0"}
    declared = re.findall(r"\.shared [^;]*\[(\d+)\]", nvrtc.getPTX(program).decode())
    assert max(map(int, declared)) <= 48 * 1024
    names = re.findall(r"^FOR_EVENTS\((\w+)", text, re.MULTILINE)
    assert names == (["fit_events"] if text_of is kernel_source else ["sum_events", "sum_grids", "order_cells"])
    for name in names:
        assert f".entry {name}".encode() in nvrtc.getPTX(program)


def _square(side):
    """Return an array of so many cells a side, with a muon detector in each."""
    x, y = np.meshgrid(np.arange(side) * 13.0, np.arange(side) * 13.0)
    area = np.ones((side, side))
    return DetectorArray("square", 13.0, x, y, area, area, np.zeros((side, side), np.int64))


def test_larger_arrays_get_fewer_events_a_block_and_one_too_large_is_refused():
    for text_of, rows in ((kernel_source, {16: 3, 20: 2, 30: 1}), (sum_source, {16: 4, 25: 2, 40: 1})):
        for side, warps in rows.items():
            kernels = text_of(PUBLISHED, _square(side))
            assert kernels.warps == warps
            assert f"#define WARPS {warps}\n" in kernels.text
        with pytest.raises(InputError, match="array square: 2500 cells are more than a GPU holds: use --device cpu"):
            text_of(PUBLISHED, _square(50))


@pytest.mark.parametrize("lg_ne", [(4.6, 6.0), (3.6, 4.6)])
def test_every_output_of_the_kernel_as_plain_cpp_agrees_with_the_cpu(draw, cuda_on_the_host, lg_ne):
    events = draw(N, seed=4, lg_ne=lg_ne).events(XP)
    ours, fused = fit_cuda(events), fit_fused(events)
    fitted = ~np.isnan(fused.electron[0])
    for a, b in zip(ours.columns(), fused.columns(), strict=True):
        np.testing.assert_array_equal(np.isnan(a), ~fitted)
        np.testing.assert_array_equal(np.isnan(b), ~fitted)
    for channel in CHANNELS:
        # Sums run in another order: a minimisation may end one step apart, within its tolerance.
        gap, matrix_gap = fit_gaps(ours, fused, channel, fitted)
        value, theirs = (getattr(fit, f"{channel}_value")[fitted].astype(np.float64) for fit in (ours, fused))
        rise = np.abs(value - theirs) / np.maximum(np.abs(theirs), 1.0)
        for difference in (gap, matrix_gap, rise):
            assert np.quantile(difference, 0.5) < 1e-4
            assert np.quantile(difference, 0.99) < 5e-3
            assert np.mean(difference < 0.1) > 0.99
        steps = getattr(ours, f"{channel}_steps")[fitted] - getattr(fused, f"{channel}_steps")[fitted]
        assert np.mean(steps == 0) > 0.98
        assert getattr(ours, f"{channel}_converged")[fitted].mean() > 0.99


@pytest.mark.parametrize("threads", [2, 4, 8])
def test_threads_do_not_disturb_each_other(drawn, threads):
    batches = [drawn.events(XP, slice(start, start + 500)) for start in range(0, 2_000, 500)]

    def compute(events):
        raw = fit_fused(events)
        return [*raw.columns(), *(np.asarray(values) for values in sum_fused(events, raw).values())]

    expected = [compute(events) for events in batches]
    with ThreadPoolExecutor(threads) as pool:
        for got, alone in zip(pool.map(compute, batches * 3), expected * 3, strict=True):
            for a, b in zip(got, alone, strict=True):
                np.testing.assert_array_equal(a, b)
    for module in (fit, on_cpu, grid):
        first, second = (module._scratch(KASCADE) for _ in range(2))
        assert not np.shares_memory(np.atleast_1d(first[-1]), np.atleast_1d(second[-1]))
