"""From archives to a result in one command, and what an installation is checked by."""

from __future__ import annotations

import hashlib
import logging
from pathlib import Path

import numpy as np
import pytest
import torch

import report.selftest as selftest
from report.reproduce import Reproduction, Score, over_events_and_seeds, reproduce
from report.selftest import HASHES, N_EVENTS, converted_hash, generated
from runtime.context import Context
from runtime.errors import InputError
from runtime.files import read_json
from scoring.score import score_file
from showers.schema import COMPOSITION, GAMMA, Task


def _by_hand(folder: Path, task: Task) -> str:
    """Return the hash of what the public scripts' rules make of generated archives, in plain NumPy."""
    modes = ("qgs_spectra",) if task == COMPOSITION else ("qgs-4_gm_pr", "LHC_gm_pr", "sibyll-23c_gm_pr")
    features, matrices = [], []
    for mode in modes:
        generated(folder, mode, N_EVENTS, gamma=task == GAMMA)
        features.append(np.load(folder / f"{mode}_features.npz")["features"].astype(np.float32))
        matrices.append(np.load(folder / f"{mode}_matrices.npz")["matrices"])
    f, m = np.concatenate(features), np.concatenate(matrices)
    passes = (f[:, 5] > 0) & (f[:, 5] < 30) & (f[:, 7] > 4.8) & (f[:, 9] > 0.2) & (f[:, 9] < 1.48)
    rows = np.flatnonzero(passes & (f[:, 8] > 3.6)) if task == COMPOSITION else np.arange(len(f))
    seed, share, columns, first = (
        (42, 0.7, [1, 5, 6, 7, 8, 9], 1) if task == COMPOSITION else (2026, 0.8, [1, 5, 6, 7, 8], 0)
    )
    order = rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed)).numpy()]
    n_train = len(rows) - int(len(rows) * (1 - share))
    digest = hashlib.sha256()
    for part in (order[:n_train], order[n_train:][passes[order[n_train:]]]):
        for array in (m[part][..., 1:], f[part][:, columns], (f[part, 0] - first).astype(np.int8)):
            digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


@pytest.mark.parametrize("task", [COMPOSITION, GAMMA], ids=["composition", "gamma"])
def test_known_hashes_are_those_of_the_public_rules(tmp_path: Path, task: Task) -> None:
    (tmp_path / "ours").mkdir()
    assert _by_hand(tmp_path, task) == converted_hash(tmp_path / "ours", task) == HASHES[task.name]


def test_selftest_passes_and_notices_what_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = list(selftest.selftest(workers=1))
    assert [line.state for line in entries] == ["ok"] * 5, entries
    monkeypatch.setattr(selftest, "composition_metrics", lambda *given: {"mean_fraction_error": 0.31})
    line = selftest._line("scorer", selftest._scorer)
    assert line.state == "bad"
    assert "0.3100 (0.32)" in line.outcome


def test_a_result_from_nothing_is_continued_and_says_how_it_was_made(tmp_path: Path) -> None:
    wanted = Reproduction(
        COMPOSITION, "2026", tmp_path / "out", simulated=6_000, seeds=2, preset="quick",
        learners=("quadratic_logit",),
    )  # fmt: skip
    log = logging.Logger("stopped")
    log.addHandler(_StopsAfter("seed 1"))
    with pytest.raises(KeyboardInterrupt):
        reproduce(wanted, Context(workers=1, log=log))
    first = (tmp_path / "out" / "runs" / "composition-seed-1" / "predictions.npz").stat().st_mtime_ns
    assert not (tmp_path / "out" / "RESULT.md").exists()
    file, scores = reproduce(wanted, Context(workers=1))
    assert (tmp_path / "out" / "runs" / "composition-seed-1" / "predictions.npz").stat().st_mtime_ns == first
    text = file.read_text()
    assert "embedded simulation: not a result on the public data" in text
    for score in scores:
        run = tmp_path / "out" / "runs" / f"composition-seed-{score.seed}"
        assert score.config_hash == read_json(run / "manifest.json")["config_hash"]
        assert score.config_hash[:16] in text
    result = score_file(
        tmp_path / "out" / "submission" / "predictions.npz", tmp_path / "out" / "data", COMPOSITION, write=False
    )
    assert result["mean_fraction_error"] == scores[0].value, "rows are handed in in the published order"


class _StopsAfter(logging.Handler):
    def __init__(self, word: str) -> None:
        super().__init__()
        self.word = word

    def emit(self, record: logging.LogRecord) -> None:
        if record.getMessage().startswith(self.word):
            raise KeyboardInterrupt


def test_interval_over_events_and_seeds() -> None:
    def score(value: float, half: float) -> Score:
        return Score(1, value, value - half, value + half, "stack", "", 0.0)

    assert over_events_and_seeds([score(0.1, 0.02)]) == pytest.approx((0.1, 0.08, 0.12))
    mean, low, high = over_events_and_seeds([score(0.09, 0.003), score(0.10, 0.003), score(0.11, 0.003)])
    # Student's t of two degrees of freedom is 4.3027; the standard error of the mean 0.01 / sqrt 3.
    half = np.hypot(0.003, 4.3027 * 0.01 / 3**0.5)
    assert (mean, low, high) == pytest.approx((0.1, 0.1 - half, 0.1 + half), rel=1e-4)


def test_contradictions_are_refused() -> None:
    with pytest.raises(InputError, match="choose one"):
        Reproduction(COMPOSITION, "2026", Path("x"), raw=Path("y"), simulated=1000)
    with pytest.raises(InputError, match="--hours"):
        Reproduction(COMPOSITION, "2026", Path("x"), hours=-1.0)
