"""Fits of halves and in other cells: they agree where nothing is wrong, and show a half that is."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from showerstack.analysis.options import Widths
from showerstack.analysis.spectra.folding import make_cells, mass_summary
from showerstack.analysis.spectra.response import Simulated, SpectrumEvents, Thrown
from showerstack.analysis.spectra.run import cell_binning
from showerstack.analysis.spectra.stability import comparisons, stability_table
from tests.analysis.skies import EXPOSURE, Sky, measured, simulated

EDGES = (15.2, 15.6, 16.2)
BINS = cell_binning(EDGES)
EXACT = Widths(0.0, 0.0, 0.0)


@pytest.fixture(scope="module")
def response() -> tuple[Simulated, Thrown]:
    return simulated(100_000, 1, BINS)


@pytest.fixture(scope="module")
def data() -> SpectrumEvents:
    return measured(Sky(), 3, exposure=EXPOSURE / 10)


def _table(data: SpectrumEvents, runs: np.ndarray, response: tuple[Simulated, Thrown]) -> pl.DataFrame:
    events, thrown = response
    cells = make_cells(BINS, events)
    compared = comparisons(data, runs, events, cells, 18.0)
    return stability_table(
        compared, data, events, thrown.counts.sum(axis=0), np.array(EDGES), EXPOSURE / 10, widths=EXACT,
        sharpness=4.0, least=(-np.inf, -np.inf),
    )  # fmt: skip


def test_halves_agree_and_cells_hardly_matter(data: SpectrumEvents, response: tuple[Simulated, Thrown]) -> None:
    runs = np.arange(len(data)) % 4
    table = _table(data, runs, response)
    assert table["variation"].unique(maintain_order=True).to_list() == [
        "zenith below 12.6 deg", "odd runs", "wider cells of energy", "6 cells of y",
    ]  # fmt: skip
    assert table.height == 4 * 2 * 2
    assert (table["difference_in_errors"].abs() < 5).all()
    cells = table.filter(pl.col("against") == "as analysed")
    assert (cells["difference_in_errors"].abs() < 2).all()
    # The sky's all-particle flux comes back from a half of the data as well.
    halves = table.filter((pl.col("variation") == "odd runs") & (pl.col("quantity") == "flux_all_m2_sr_s_eV"))
    np.testing.assert_allclose(halves["value"] / halves["value_against"], 1, atol=0.15)


def test_a_half_that_is_heavier_is_seen(data: SpectrumEvents, response: tuple[Simulated, Thrown]) -> None:
    """Odd runs lose two thirds of the events that look light."""
    runs = np.arange(len(data)) % 2
    light = mass_summary(data.log_proba) < 1.5
    kept = (runs == 0) | ~light | (np.arange(len(data)) % 3 == 0)
    table = _table(data.take(kept), runs[kept], response)
    shares = table.filter((pl.col("variation") == "odd runs") & (pl.col("quantity") == "fraction_light"))
    assert shares.height == 2
    assert (shares["difference_in_errors"] < -5).all()


def test_halves_of_too_few_events_are_left_out(data: SpectrumEvents, response: tuple[Simulated, Thrown]) -> None:
    few = data.take(np.arange(len(data)) < 400)
    compared = comparisons(few, np.zeros(len(few), dtype=int), response[0], make_cells(BINS, response[0]), 18.0)
    assert "odd runs" not in [one.one.name for one in compared]
