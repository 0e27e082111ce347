"""From archives to a result in one command; conversion gives what the public rules give."""

from __future__ import annotations

import hashlib
import inspect
import logging
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from showerstack.report.reproduce import Reproduction, Score, Stages, over_events_and_seeds, reproduce
from showerstack.report.run_page import write_report
from showerstack.runtime.context import Context
from showerstack.runtime.errors import InputError
from showerstack.runtime.files import read_json
from showerstack.runtime.logs import logging_to
from showerstack.scoring.score import score_file
from showerstack.showers.schema import COMPOSITION, ENERGY, GAMMA, Task
from showerstack.showers.simulation.raw import simulate_raw
from tests.showers.known import HASHES, N_EVENTS, converted_hash, write_archives
from tests.showers.test_download import Server

ROOT = Path(__file__).parents[2]


def _by_hand(folder: Path, task: Task) -> str:
    """Return the hash of what the public scripts' rules make of generated archives, in plain NumPy."""
    modes = ("qgs_spectra",) if task == COMPOSITION else ("qgs-4_gm_pr", "LHC_gm_pr", "sibyll-23c_gm_pr")
    features, matrices = [], []
    for mode in modes:
        write_archives(folder, mode, N_EVENTS, gamma=task == GAMMA)
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


def _empty_report(run: Path, data: Path, **options: object) -> None:
    """Stand for the report, which tests of pages make; it must be asked for as it can be."""
    inspect.signature(write_report).bind(run, data, **options)
    (run / "report.html").touch()


@pytest.mark.parametrize("task", [COMPOSITION, GAMMA], ids=["composition", "gamma"])
def test_known_hashes_are_those_of_the_public_rules(tmp_path: Path, task: Task) -> None:
    (tmp_path / "ours").mkdir()
    assert _by_hand(tmp_path, task) == converted_hash(tmp_path / "ours", task) == HASHES[task.name]


@pytest.mark.slow
@pytest.mark.parametrize("killed", [False, pytest.param(True, marks=pytest.mark.faults)])
def test_a_result_cut_off_is_continued_and_says_how_it_was_made(
    killed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("showerstack.report.reproduce.write_report", _empty_report)
    out = tmp_path / "out"
    wanted = Reproduction(
        COMPOSITION, "2026", out, simulated=3_000, seeds=2, preset="quick", learners=("quadratic_logit",)
    )
    if killed:
        kill_after_one_seed(out, tmp_path / "log")
    else:
        with pytest.raises(KeyboardInterrupt), logging_to(_Lines("seed 1:"), level="INFO"):
            reproduce(wanted, Context(workers=1))
    first = out / "runs" / "composition-seed-1" / "predictions.npz"
    before = first.stat().st_mtime_ns
    assert not (out / "RESULT.md").exists()
    lines = _Lines()
    with logging_to(lines, level="INFO"):
        file, scores = reproduce(wanted, Context(workers=1))
    assert first.stat().st_mtime_ns == before
    text = file.read_text()
    assert "embedded simulation: not a result on the public data" in text
    for score in scores:
        run = out / "runs" / f"composition-seed-{score.seed}"
        assert score.config_hash == read_json(run / "manifest.json")["config_hash"]
        assert score.config_hash[:16] in text
        assert (run / "report.html").exists() == (score.seed == 1), "one report, of what is handed in"
    result = score_file(out / "submission" / "predictions.npz", out / "data", COMPOSITION, write=False)
    assert result["mean_fraction_error"] == scores[0].value, "rows are handed in in the published order"
    assert {file.name.split("_")[0] for file in (out / "raw").iterdir()} == {"qgs"}, "what the protocol takes, no more"
    stages = read_json(out / "stages.json")
    names = ["archives", "conversion", "runs: seed 1", "scores", "runs: seed 2", "report and submission"]
    assert list(stages) == names, "those of the killed call are kept"
    assert [name for name in (*names, "all", "train quadratic_logit") if f"| {name} |" not in text] == []
    assert sum(line.startswith(tuple(f"{name}, " for name in names)) for line in lines.messages) == len(names)


def kill_after_one_seed(out: Path, log: Path) -> None:
    """Begin the result as a user does, and kill it when its first run has ended."""
    options = "--simulated --showers 3000 --seeds 2 --workers 1 --learners quadratic_logit --out"
    with log.open("w") as stream:
        command = [sys.executable, str(ROOT / "cli.py"), "reproduce", *options.split(), str(out)]
        process = subprocess.Popen(command, cwd=ROOT, stdout=stream, stderr=stream)
        while process.poll() is None and "seed 1:" not in log.read_text():
            time.sleep(0.05)
        process.kill()
        process.wait()
    assert process.returncode == -signal.SIGKILL, log.read_text()


class _Lines(logging.Handler):
    """What was logged; after a line with the word ``until``, as if the user interrupted."""

    def __init__(self, until: str | None = None) -> None:
        super().__init__()
        self.messages: list[str] = []
        self.until = until

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())
        if self.until is not None and self.until in record.getMessage():
            raise KeyboardInterrupt


@pytest.mark.slow
def test_archives_are_downloaded_and_late_seeds_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("showerstack.report.reproduce.write_report", _empty_report)
    made = simulate_raw(COMPOSITION, tmp_path / "made", 1_500, workers=1, modes=("qgs_spectra",))
    lines = _Lines()
    with Server() as server:
        server.files = {f"/{file.name}": file.read_bytes() for file in made}
        server.break_after = [50_000, 100_000]  # the connection breaks twice and is taken up again
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        wanted = Reproduction(
            COMPOSITION, "2026", tmp_path / "out", hours=1e-6, seeds=3, preset="quick",
            learners=("quadratic_logit",), base_url=server.url,
        )  # fmt: skip
        with logging_to(lines, level="INFO"):
            _, scores = reproduce(wanted, Context(workers=1))
        server.shutdown()
        thread.join()
    assert sum(asked is not None for asked in server.ranges) == 2
    assert [score.seed for score in scores] == [1]
    assert "2 of 3 seeds are left out: the time is up" in lines.messages
    for mode_file in ("qgs_spectra_matrices.npz", "qgs_spectra_features.npz"):
        assert (tmp_path / "out" / "raw" / mode_file).read_bytes() == (tmp_path / "made" / mode_file).read_bytes()
    with pytest.raises(InputError, match="--base-url is where archives are downloaded from"):
        replace(wanted, simulated=1000)


@pytest.mark.slow
def test_energies_have_a_result_without_a_submission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("showerstack.report.reproduce.write_report", _empty_report)
    wanted = Reproduction(ENERGY, "2026", tmp_path, simulated=3_000, seeds=1, learners=("quadratic_logit",))
    for _ in range(2):
        file, (score,) = reproduce(wanted, Context(workers=1))
        assert f"resolution, half the width of the central 68 % {score.value:.4g}" in file.read_text()
        assert "ubmission" not in file.read_text().replace("report and submission", "")
    assert not (tmp_path / "submission").exists()
    assert (tmp_path / "runs" / "energy-seed-1" / "model_card.md").exists()


def test_interval_over_events_and_seeds() -> None:
    def score(value: float, half: float) -> Score:
        return Score(1, value, value - half, value + half, "stack", "", 0.0)

    assert over_events_and_seeds([score(0.1, 0.02)]) == pytest.approx((0.1, 0.08, 0.12))
    mean, low, high = over_events_and_seeds([score(0.09, 0.003), score(0.10, 0.003), score(0.11, 0.003)])
    # Student's t of two degrees of freedom is 4.3027; the standard error of the mean 0.01 / sqrt 3.
    half = np.hypot(0.003, 4.3027 * 0.01 / 3**0.5)
    assert (mean, low, high) == pytest.approx((0.1, 0.1 - half, 0.1 + half), rel=1e-4)


def test_what_is_refused_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nowhere"):
        reproduce(Reproduction(COMPOSITION, "2026", tmp_path / "out", raw=tmp_path / "nowhere"))
    assert not (tmp_path / "out").exists()


def test_stages_are_added_up_over_calls(tmp_path: Path) -> None:
    for _ in range(2):
        stages = Stages.open(tmp_path)
        for name in ("runs: seed 1", "scores"):
            with stages.stage(name):
                time.sleep(0.02)
    assert list(read_json(tmp_path / "stages.json")) == ["runs: seed 1", "scores"]
    assert Stages.open(tmp_path).wall_s >= 0.04
    assert stages.wall_s == stages.seconds["runs: seed 1"]["wall_s"], "the limit is that of the runs"
    with pytest.raises(KeyboardInterrupt), stages.stage("scores"):
        raise KeyboardInterrupt
    assert stages.seconds["scores"]["wall_s"] >= 0.04


def test_a_kill_leaves_what_a_stage_has_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("showerstack.report.reproduce.NOTED_EVERY_S", 0.01)
    file = tmp_path / "stages.json"

    def noted(name: str, above_s: float) -> None:
        limit = time.monotonic() + 60
        while not (file.exists() and read_json(file).get(name, {"wall_s": 0.0})["wall_s"] > above_s):
            assert time.monotonic() < limit, "nothing is written before the end of the stage"

    stages = Stages.open(tmp_path)
    with stages.stage("scores"):
        noted("scores", 0.2)
        assert Stages.open(tmp_path).seconds["scores"]["cpu_s"] > 0.0, "as if this process were killed here"
        killed = Stages.open(tmp_path)
    with killed.stage("scores"):
        noted("scores", killed.seconds["scores"]["wall_s"] + 0.1)
    before = read_json(file)

    def refused() -> None:
        with killed.stage("conversion"):
            noted("conversion", 0.1)
            raise InputError("refused")

    with pytest.raises(InputError, match="refused"):
        refused()
    assert read_json(file) == before == killed.seconds


def test_contradictions_are_refused() -> None:
    with pytest.raises(InputError, match="choose one"):
        Reproduction(COMPOSITION, "2026", Path("x"), raw=Path("y"), simulated=1000)
    with pytest.raises(InputError, match="--hours"):
        Reproduction(COMPOSITION, "2026", Path("x"), hours=-1.0)
