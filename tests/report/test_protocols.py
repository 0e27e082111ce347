"""The 2026 protocol: raw labels only, a log of attempts, the published order of rows."""

from __future__ import annotations

import io
import shutil
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from report.doctor import examine_dataset
from report.public.leaderboard import leaderboard
from report.public.rules import HEADS, MAX_ATTEMPTS, log_attempt, next_attempt, score_by_protocol
from report.public.submission import write_submission
from report.shared.published import PUBLISHED, TEST_CLASSES
from runtime.errors import InputError
from runtime.files import read_json, write_json, write_npz
from scoring.metrics.composition import fraction_error
from scoring.score import score_file
from scoring.tasks.truth import read_truth
from showers.dataset import Dataset
from showers.schema import COMPOSITION, GAMMA
from stacking.run.folder import write_run_checksums


def text(renderable: object) -> str:
    stream = io.StringIO()
    Console(file=stream, width=140).print(renderable)
    return stream.getvalue()


@pytest.fixture
def world(composition_world: tuple[Path, Path], tmp_path: Path) -> tuple[Path, Path]:
    """The composition run and its test set, as if the set followed the 2026 protocol and had been converted."""
    run, data = (shutil.copytree(folder, tmp_path / folder.name) for folder in composition_world)
    test = data / "composition_test"
    (test / "checksums.json").unlink()
    write_json(test / "source.json", read_json(test / "source.json") | {"protocol": "2026"})
    n = len(np.load(test / "labels_composition.npy"))
    np.save(test / "order.npy", np.random.default_rng(8).permutation(n))
    fingerprint = Dataset.open(test, labels=False).fingerprint()
    with np.load(run / "predictions.npz") as stored:
        write_npz(run / "predictions.npz", **{**stored, "test_fingerprint": np.array(fingerprint)})
    manifest = read_json(run / "manifest.json")
    manifest["data"] |= {"test_fingerprint": fingerprint, "test": str(test)}
    write_json(run / "manifest.json", manifest)
    write_run_checksums(run)
    return run, data


def _labels(run: Path) -> tuple[np.ndarray, np.ndarray]:
    with np.load(run / "predictions.npz") as stored:
        return stored["predictions"].astype(int), stored["log_proba"].argmax(axis=1)


def test_the_published_order_decides_the_benchmarks_own_draws(world: tuple[Path, Path]) -> None:
    run, data = world
    truth, (decided, _) = read_truth(data, COMPOSITION), _labels(run)
    order = np.load(data / "composition_test" / "order.npy")
    labels, predicted = np.empty_like(truth.labels), np.empty_like(decided)
    labels[order], predicted[order] = truth.labels, decided
    found = score_file(run / "predictions.npz", data, COMPOSITION, intervals=False)["mean_fraction_error"]
    assert found == fraction_error(labels, predicted)
    assert found != fraction_error(truth.labels, decided), "else this test could not fail"


def test_2026_scores_the_most_probable_class(world: tuple[Path, Path]) -> None:
    run, data = world
    decided, raw = _labels(run)
    assert (decided != raw).any()
    truth = read_truth(data, COMPOSITION)
    found = score_by_protocol(run / "predictions.npz", data, COMPOSITION, protocol="2026", intervals=False)
    assert found["accuracy"] == np.mean(raw == truth.labels)
    assert f"{np.count_nonzero(raw != decided):,} decided labels were replaced" in found["warnings"][0]
    own = score_by_protocol(run / "predictions.npz", data, COMPOSITION, intervals=False)
    assert own["accuracy"] == np.mean(decided == truth.labels)
    with pytest.raises(InputError, match=r"test set of simulation of 2026 .*, not of protocol matched"):
        score_by_protocol(run / "predictions.npz", data, COMPOSITION, protocol="matched")


def test_leaderboard_of_2026_takes_raw_labels(world: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    run, data = world
    score_file(run / "predictions.npz", data, COMPOSITION)
    truth, (_, raw) = read_truth(data, COMPOSITION), _labels(run)
    accuracy = f"{100 * np.mean(raw == truth.labels):.2f}"
    shown = text(leaderboard([run], data=data))
    assert "simulation of 2026" in shown
    assert accuracy in shown
    assert "five CNN" not in shown
    (data / "composition_test" / "source.json").unlink()
    counts = tuple(np.bincount(truth.labels).tolist())
    monkeypatch.setitem(TEST_CLASSES, ("composition", "2026"), counts)
    np_fingerprint = Dataset.open(data / "composition_test", labels=False).fingerprint()
    monkeypatch.setattr("report.shared.subject.check_events", lambda *given: [])
    shown = text(leaderboard([run], data=data))
    assert np_fingerprint
    assert accuracy in shown
    assert "five CNN + MLP networks" in shown
    assert "JINST 19 (2024) P01025" in shown
    assert "LeNet, batch norm" not in shown, "the matched protocol has its own table"


def test_submission_has_published_order_and_raw_labels(world: tuple[Path, Path], tmp_path: Path) -> None:
    run, data = world
    folder = write_submission([run], "one", data=data, out=tmp_path / "out")
    order = np.load(data / "composition_test" / "order.npy")
    _, raw = _labels(run)
    with np.load(folder / "predictions.npz") as stored:
        np.testing.assert_array_equal(stored["predictions"][order], raw)
    readme = (folder / "README.md").read_text()
    assert "--published-order" in readme
    assert "the run's own predictions follow the shuffled test folder" in readme
    again = score_by_protocol(
        folder / "predictions.npz", data, COMPOSITION, protocol="2026", intervals=False, published_order=True
    )
    first = score_by_protocol(run / "predictions.npz", data, COMPOSITION, protocol="2026", intervals=False)
    assert again["mean_fraction_error"] == first["mean_fraction_error"]
    wrong = score_by_protocol(folder / "predictions.npz", data, COMPOSITION, intervals=False)
    assert any("give --published-order" in line for line in wrong["warnings"])


def test_attempts_are_logged_only_when_asked(world: tuple[Path, Path], tmp_path: Path) -> None:
    run, data = world
    log = tmp_path / "results.tsv"
    with pytest.raises(InputError, match="--log needs --description"):
        score_by_protocol(run / "predictions.npz", data, COMPOSITION, protocol="2026", log=log)
    with pytest.raises(InputError, match="add --protocol 2026"):
        score_by_protocol(run / "predictions.npz", data, COMPOSITION, log=log, description="x")
    assert not log.exists()
    found = score_by_protocol(
        run / "predictions.npz", data, COMPOSITION, protocol="2026", log=log, description="a\tstack\n", intervals=False
    )
    lines = log.read_text().splitlines()
    assert lines[0] == HEADS["composition"]
    assert lines[1].startswith("0\t0.1073\t0.504\t")
    assert lines[2].split("\t") == [
        "1", f"{found['mean_fraction_error']:.4f}", f"{found['accuracy']:.4f}", str(run / "predictions.npz"), "a stack",
    ]  # fmt: skip
    for _ in range(MAX_ATTEMPTS - 1):
        log_attempt(log, found, run / "predictions.npz", "again")
    with pytest.raises(InputError, match="holds 50 attempts"):
        log_attempt(log, found, run / "predictions.npz", "once more")
    (tmp_path / "other.tsv").write_text("a,b\n")
    with pytest.raises(InputError, match="is no list of attempts"):
        log_attempt(tmp_path / "other.tsv", found, run, "x")


def test_attempts_at_gamma_have_their_own_columns(tmp_path: Path) -> None:
    log, metrics = tmp_path / "results.tsv", {"survival_rates": {"75%": {"hadron_survival": 9 / 34_267}}}
    log_attempt(log, metrics, Path("p.npz"), "two branches", GAMMA)
    assert log.read_text().splitlines() == [
        "attempt\tsurvival_75\tpredictions\tdescription",
        "0\t1.0e-02\tbaseline/predictions.npz\trandom forest baseline (published)",
        "1\t2.6e-04\tp.npz\ttwo branches",
    ]
    with pytest.raises(InputError, match="no list of attempts at composition"):
        next_attempt(log)


def test_doctor_of_a_dataset(world: tuple[Path, Path]) -> None:
    test = world[1] / "composition_test"
    shown = text(examine_dataset(test))
    assert "simulation of 2026" in shown
    assert "runs of equal labels" in shown
    assert "ordered by class" not in shown
    labels = np.load(test / "labels_composition.npy")
    np.save(test / "labels_composition.npy", np.sort(labels))
    assert "5 runs of equal labels" in text(examine_dataset(test))
    assert "ordered by class" in text(examine_dataset(test))
    (test / "labels_composition.npy").unlink()
    assert "events to be predicted" in text(examine_dataset(test))


def test_published_results_of_2026() -> None:
    best = min((p for p in PUBLISHED if (p.task, p.protocol) == ("gamma", "2026")), key=lambda p: p.value)
    assert f"{best.value:.2e}" == "2.63e-04"
    assert best.interval.low < 1.5e-4 < 4e-4 < best.interval.high
    assert min(p.value for p in PUBLISHED if (p.task, p.protocol) == ("composition", "2026")) == 0.1051
    assert sum(TEST_CLASSES["gamma", "2026"]) == 1_579 + 34_267
