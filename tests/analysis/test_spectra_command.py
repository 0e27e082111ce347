"""Spectra as a user measures them: a small run, a set without labels, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from analysis.events import model_numbers
from analysis.spectra.reading import thrown_primaries
from analysis.spectra.run import SpectraOptions, measure_spectra
from commands.physics import numbers
from report.physics_pages import spectra_text, write_spectra_page
from runtime.context import PlainConsole
from runtime.errors import InputError
from runtime.files import read_json

EDGES = (14.9, 15.4, 16.0)


def _options(run: Path, sky: Path, out: Path, **changes: object) -> SpectraOptions:
    found = {"exposure": "1e7", "simulation": [], "edges": EDGES, "zenith_max_deg": 30.0, "replicas": 20}
    return SpectraOptions(run, [sky], out=out, trusted=True, **(found | changes))  # type: ignore[arg-type]


def test_spectra_of_a_small_sky(composition_run: Path, composition_sky: Path, tmp_path: Path) -> None:
    found, remarks = measure_spectra(_options(composition_run, composition_sky, tmp_path))
    table = pl.read_parquet(tmp_path / "spectra.parquet")
    assert table.height == 2 * 6
    assert {"flux_m2_sr_s_eV", "flux_error_total_m2_sr_s_eV", "lg_energy_low_eV"} <= set(table.columns)
    assert pl.read_csv(tmp_path / "spectra.csv").columns == table.columns
    share = table.filter(pl.col("group") != "all")["fraction"].to_numpy()
    error = table.filter(pl.col("group") != "all")["fraction_error_statistical"].to_numpy()
    assert np.abs((share - 0.2) / error).max() < 4, "all groups were thrown alike"
    provenance = read_json(tmp_path / "spectra.json")
    assert provenance["corrected_for_efficiency"]
    assert provenance["exposure_m2_sr_s"] == 1e7
    assert 0 < provenance["goodness_of_fit"]["p_value"] <= 1
    assert any("out-of-fold" in remark for remark in remarks), "too small a holdout is told"
    assert any("knees were not fitted: 2 energy bins" in remark for remark in remarks)
    with np.load(tmp_path / "covariance.npz") as stored:
        assert stored["flux_data_m2_sr_s_eV_squared"].shape == (10, 10)
    page = write_spectra_page(found, tmp_path, remarks).read_text()
    assert page.count("<svg") == 6
    PlainConsole(width=100).print(spectra_text(found))


def test_what_cannot_be_right_is_refused(
    composition_run: Path, composition_sky: Path, tiny_composition: Path, gamma_run: Path, tmp_path: Path
) -> None:
    cases = (
        ({"exposure": "three"}, "--exposure"),
        ({"edges": (17.8, 17.9)}, "hold no proton"),
        ({"zenith_max_deg": -1.0}, "--zenith-max"),
        ({"replicas": 2}, "--replicas"),
        ({"knee_toys": -1}, "--knee-toys"),
        ({"simulation": [tiny_composition / "composition_train"]}, "was trained on"),
        ({"simulation": [composition_sky]}, "label"),
        ({"simulation": [tiny_composition / "composition_test"]}, "both --data and --simulation"),
    )
    for changes, message in cases:
        with pytest.raises(InputError, match=message):
            measure_spectra(_options(composition_run, composition_sky, tmp_path, **changes))
    with pytest.raises(InputError, match="was trained on"):
        measure_spectra(_options(composition_run, tiny_composition / "composition_train", tmp_path))
    with pytest.raises(InputError, match="trained for gamma: spectra needs a run trained for composition"):
        measure_spectra(_options(gamma_run, composition_sky, tmp_path))
    with pytest.raises(InputError, match="numbers with commas"):
        numbers("15,a", "--bins")


def test_thrown_primaries_are_those_of_the_set(tiny_composition: Path) -> None:
    folder = tiny_composition / "composition_test"
    source, truth = read_json(folder / "source.json"), pl.read_parquet(folder / "truth.parquet")
    edges = np.linspace(14, 18, 81)
    thrown = thrown_primaries(source, truth, edges, 90.0).counts
    accepted, _ = np.histogram(truth["lg_energy"].to_numpy(), edges)
    assert (thrown.sum(axis=(0, 1)) >= accepted).all()
    last = int(truth["shower"].max())
    assert thrown.sum() == pytest.approx(last + 1, rel=1e-3), "every primary up to the last event"
    assert thrown_primaries(source, truth, edges, 30.0).counts.sum() < thrown.sum()
    moved = truth.with_columns(pl.col("lg_energy") + 0.01)
    for wrong_source, wrong_truth, message in (
        (source, moved, "code has been changed"),
        (source | {"settings_hash": "0"}, truth, "world"),
        (source | {"generator": "CORSIKA"}, truth, "does not name"),
    ):
        with pytest.raises(InputError, match=message):
            thrown_primaries(wrong_source, wrong_truth, edges, 30.0)


def test_models_of_raw_archives_have_names_and_those_of_simulated_sets_numbers() -> None:
    names = pl.DataFrame({"model": ["qgs-4_gm_pr", "LHC_gm_pr", "qgs-4_gm_pr"]})
    assert model_numbers(names).tolist() == [2, 1, 2]
    assert model_numbers(pl.DataFrame({"model": [0, 2, 1]})).tolist() == [0, 2, 1]
