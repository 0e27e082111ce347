"""A search for photons as a user makes it: a small run, a set without labels, and what is refused."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from analysis.photons.search import PhotonResult, SearchOptions, search_photons
from analysis.sky.map import SkyOptions, sky_map
from report.physics_pages import limits_text, write_photon_page
from runtime.context import PlainConsole
from runtime.errors import InputError
from runtime.files import read_json

EDGES = (14.8, 17.0)


def _options(run: Path, sky: Path, out: Path, **changes: object) -> SearchOptions:
    return SearchOptions(run, [sky], "1e8", out, **({"edges": EDGES, "trusted": True} | changes))  # type: ignore[arg-type]


def test_a_search_finds_the_photons_of_a_test_set(gamma_run: Path, gamma_sky: Path, tmp_path: Path) -> None:
    """The test set holds one photon to about eight protons, far more than any sky."""
    result = PhotonResult(search_photons(_options(gamma_run, gamma_sky, tmp_path)))
    result.write(tmp_path)
    limits, candidates = pl.read_csv(tmp_path / "limits.csv"), pl.read_csv(tmp_path / "candidates.csv")
    whole = limits.filter(pl.col("range") == "above").row(0, named=True)
    assert whole["candidates"] == len(candidates) > 10
    assert whole["interval_low_events"] > 0
    assert whole["limit_fraction"] > 0.02
    assert {"limit_photons_m2_sr_s", "limit_photons_m2_sr_s_eV", "expected_limit_fraction"} <= set(limits.columns)
    assert (np.diff(candidates["score"].to_numpy()) <= 0).all()
    told = read_json(tmp_path / "gamma_limit.json")
    assert told["exposure_m2_sr_s"] == 1e8
    assert told["efficiency_and_migration_known"]
    assert any("out-of-fold" in remark for remark in told["remarks"])
    page = write_photon_page(result, tmp_path).read_text()
    assert page.count("<svg") == 4 + 1 + 6
    PlainConsole(width=160).print(limits_text(result.search))


def test_what_cannot_be_right_is_refused(
    gamma_run: Path, gamma_sky: Path, tiny_gamma: Path, composition_run: Path, tmp_path: Path
) -> None:
    cases = (
        ({"exposure": "many"}, "--exposure"),
        ({"exposure": "3 acres"}, "unknown unit"),
        ({"edges": (17.8, 17.9)}, "no energy bin can be used"),
        ({"edges": (13.0, 15.0)}, "must lie in"),
        ({"zenith_max_deg": 70.0}, "--zenith-max"),
        ({"level": 1.0}, "--level"),
        ({"efficiency": 1.5}, "--efficiency"),
        ({"index": 0.0}, "--index"),
        ({"zenith_max_deg": 1e-3}, "no event passes"),
        ({"simulation": tiny_gamma / "gamma_train"}, "was trained on"),
        ({"simulation": gamma_sky}, "label"),
        ({"simulation": tiny_gamma / "gamma_test"}, "both --data and --simulation"),
        ({"data": [gamma_sky, gamma_sky]}, "same events"),
        ({"data": [tiny_gamma / "gamma_train"]}, "was trained on"),
        ({"run": composition_run}, "trained for composition: gamma-limit needs a run trained for gamma"),
    )
    for changes, message in cases:
        given = vars(_options(gamma_run, gamma_sky, tmp_path)) | changes
        with pytest.raises(InputError, match=message):
            search_photons(SearchOptions(**given))  # type: ignore[arg-type]


def test_labels_where_none_should_be_are_told_and_not_read(gamma_run: Path, tiny_gamma: Path, tmp_path: Path) -> None:
    found = search_photons(_options(gamma_run, tiny_gamma / "gamma_test", tmp_path))
    assert any("holds labels_gamma.npy, which is not read" in remark for remark in found.remarks)


def test_a_sky_map_of_the_highest_scores(gamma_run: Path, gamma_sky: Path, tmp_path: Path) -> None:
    pytest.importorskip("astropy")
    timed = tmp_path / "004000"
    shutil.copytree(gamma_sky, timed)
    (timed / "checksums.json").unlink()
    np.save(timed / "times.npy", np.linspace(1e9, 1e9 + 86_400, len(np.load(timed / "features.npy"))))
    whole = sky_map(SkyOptions([timed], pixel_deg=30.0, scrambles=2))
    found = sky_map(SkyOptions([timed], pixel_deg=30.0, scrambles=2, run=gamma_run, share=0.2, trusted=True))
    assert found.score_threshold is not None
    assert abs(found.events - 0.2 * whole.events) <= 1
