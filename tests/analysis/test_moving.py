"""Simulated showers are moved as their sizes are, and predicted again."""

from __future__ import annotations

import shutil
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from showerstack.analysis.spectra import moving
from showerstack.analysis.spectra.folding import MOVE, mass_summary
from showerstack.analysis.spectra.moving import AGAIN, DEPOSITS, moved_summaries, multiplied_set
from showerstack.runtime.checksums import CHECKSUMS_FILE, write_checksums
from showerstack.runtime.context import Context
from showerstack.runtime.files import read_json, write_json
from showerstack.showers.dataset import Dataset
from showerstack.showers.kascade import reconstructed_energy
from showerstack.showers.schema import COMPOSITION
from showerstack.showers.simulation import simulate


def _posteriors(dataset: Dataset) -> np.ndarray:
    """Return log-posteriors that know masses by muons against electrons."""
    s = np.asarray(dataset.scalars, dtype=np.float64)
    density = -0.5 * ((s[:, 4] - 0.8 * s[:, 3])[:, None] / 0.1 - np.arange(-2, 3)) ** 2
    return np.asarray(density - np.logaddexp.reduce(density, axis=1, keepdims=True))


@pytest.fixture
def predicted(monkeypatch: pytest.MonkeyPatch) -> Any:
    def predict(run: Any, events: Any, ctx: Context, **options: bool) -> Any:
        events = Dataset.open(events, labels=False) if isinstance(events, Path) else events
        values = SimpleNamespace(log_proba=_posteriors(events), scalars=events.scalars)
        return SimpleNamespace(concatenated=lambda: values)

    monkeypatch.setattr(moving, "predict", predict)
    monkeypatch.setattr(moving, "columns_needed", lambda run: ())
    return SimpleNamespace(chain=SimpleNamespace(config_hash="0" * 64), task=COMPOSITION)


def _foreign(folder: Path, out: Path) -> Path:
    """Copy a set so that nothing says how it could be simulated again."""
    shutil.copytree(folder, out, ignore=shutil.ignore_patterns("*.features"))
    write_json(out / "source.json", read_json(out / "source.json") | {"simulation_version": "of another time"})
    (out / CHECKSUMS_FILE).unlink()
    write_checksums(out, [file.name for file in out.iterdir()])
    return out


@pytest.mark.slow
def test_a_set_is_simulated_again_with_other_sizes(
    tiny_composition: Path, tmp_path: Path, predicted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = Dataset.open(tiny_composition / "composition_test", COMPOSITION)
    y, how = moved_summaries(predicted, data, Context(), tmp_path / "kept")
    assert how == AGAIN
    assert (np.isfinite(y).mean(axis=0) > 0.8).all(), "most showers are there again"
    rise = np.nanmean(y[:, 1::2] - y[:, ::2], axis=0)
    assert rise[0] > 0.01
    assert rise[1] < -0.01
    monkeypatch.setattr(moving, "predict", None)
    again, _ = moved_summaries(predicted, data, Context(), tmp_path / "kept")
    np.testing.assert_allclose(again, y, atol=1e-5, err_msg="kept")


@pytest.mark.parametrize("reuse", [1, 5])
def test_showers_are_simulated_again_as_themselves(
    reuse: int, tmp_path: Path, predicted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every shower that passes again is the same one at the same core; with sizes as they were none is lost."""
    _, folder = simulate(COMPOSITION, tmp_path, n_train=1, n_test=150, seed=3, reuse=reuse, workers=1)
    data = Dataset.open(folder, COMPOSITION)
    for move, column in ((1, 4), (3, 3)):
        monkeypatch.setattr(moving, "mass_summary", lambda log_proba, _, column=column: log_proba[:, column])
        monkeypatch.setattr(
            sys.modules[__name__], "_posteriors", lambda events: np.asarray(events.scalars, dtype=np.float64)
        )
        y = moving.simulated_again(predicted, data, Context(workers=1))
        there = np.isfinite(y[:, move])
        assert there.mean() > 0.8
        change = y[there, move] - np.asarray(data.scalars, dtype=np.float64)[there, column]
        assert np.median(change) == pytest.approx(MOVE, abs=0.01)
        assert np.std(change) < 0.05, "the same showers, not others of the same kind"
    monkeypatch.setattr(moving, "MOVE", 0.0)
    y = moving.simulated_again(predicted, data, Context(workers=1))
    np.testing.assert_array_equal(y, np.asarray(data.scalars, dtype=np.float64)[:, [3] * 4])
    some = np.arange(len(data)) % 3 == 0
    part = moving.simulated_again(predicted, data, Context(workers=1), some)
    np.testing.assert_array_equal(part[some], y[some])
    assert np.isnan(part[~some]).all()


@pytest.mark.slow
def test_deposits_are_multiplied_where_nothing_can_be_simulated_again(
    tiny_composition: Path, tmp_path: Path, predicted: Any
) -> None:
    data = Dataset.open(_foreign(tiny_composition / "composition_test", tmp_path / "archive"), COMPOSITION)
    with multiplied_set(data, 0, MOVE) as folder:
        moved = Dataset.open(folder, labels=False)
        grids, before = (np.asarray(one.matrices[:50], dtype=np.float64) for one in (moved, data))
        np.testing.assert_array_equal(grids[..., 0], before[..., 0])
        np.testing.assert_allclose(grids[..., 1], before[..., 1] * 10**MOVE, rtol=2e-3)
        scalars = np.asarray(moved.scalars, dtype=np.float64)
        as_stored = np.asarray(data.scalars, dtype=np.float64)
        np.testing.assert_allclose(scalars[:, 4], as_stored[:, 4] + MOVE, atol=4e-3)
        rise = reconstructed_energy(as_stored[:, 3], as_stored[:, 4] + MOVE, as_stored[:, 1])
        rise -= reconstructed_energy(as_stored[:, 3], as_stored[:, 4], as_stored[:, 1])
        np.testing.assert_allclose(scalars[:, 0] - as_stored[:, 0], rise, atol=0.017)
    y, how = moved_summaries(predicted, data, Context())
    assert how == DEPOSITS
    assert np.isfinite(y).all()
    pairs, _ = moved_summaries(predicted, Dataset.open(tiny_composition / "composition_test", COMPOSITION), Context())
    now = mass_summary(_posteriors(data))[:, None]
    assert np.nanmean(pairs[:, :2] - now) == pytest.approx(np.nanmean(y[:, :2] - now), abs=0.05)


@pytest.mark.parametrize("lacking", ["cuts", "split", "reuse"])
def test_a_set_that_does_not_say_how_it_was_made_is_multiplied(lacking: str, tiny_composition: Path) -> None:
    """Raw archives of our own simulation are converted without cuts and split."""
    dataset = Dataset.open(tiny_composition / "composition_test", COMPOSITION)
    assert moving.world_of(dataset) is not None
    source = {name: value for name, value in dataset.source.items() if name != lacking}
    assert moving.world_of(replace(dataset, source=source)) is None
