"""``verify.py``: the public usage, refusals in one line with exit code 2, and never a half-written file."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

import verify
from showerstack.runtime.errors import InputError
from tests.program import call

N = 1000


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder with both test sets; only the files that scoring needs."""
    rng = np.random.default_rng(1)
    scalars = np.stack(
        [rng.uniform(14.5, 17.5, N), rng.uniform(0, 30, N), rng.uniform(0, 360, N), *rng.uniform(4.8, 7, (2, N))],
        axis=1,
    ).astype(np.float16)
    for task, labels in (("composition", np.arange(N) % 5), ("gamma", (np.arange(N) % 10 > 0).astype(int))):
        folder = tmp_path / "data" / f"{task}_test"
        folder.mkdir(parents=True)
        np.save(folder / "features.npy", scalars)
        np.save(folder / f"labels_{task}.npy", labels.astype(np.int8))
    return tmp_path / "data"


def refused(*arguments: str | Path) -> str:
    return call("verify.py", *arguments, code=2).stderr


GOOD = np.arange(N) % 5
SCORES = np.linspace(1, 0, N)


def test_composition_is_the_default_task(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez(tmp_path / "p.npz", predictions=GOOD.astype(np.uint8))
    monkeypatch.chdir(tmp_path)  # so that the default --data finds ./data
    printed = call("verify.py", "p.npz").stdout
    metrics = json.loads((tmp_path / "metrics_composition.json").read_text())
    assert metrics["mean_fraction_error"] == 0.0
    assert metrics["accuracy"] == 1.0
    assert metrics["intervals"]["mean_fraction_error"]["high"] > 0
    assert "fraction error 0.0000 [0.0000," in printed
    assert "metrics_composition.json" in printed


def test_gamma_with_json_and_without_intervals(data: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "g.npz", gamma_scores=SCORES, config_hash=np.array("abc"))
    asked = ("--task", "gamma", "--data", data, "--json", "--no-intervals", tmp_path / "g.npz")
    printed = json.loads(call("verify.py", *asked).stdout)
    assert printed == json.loads((tmp_path / "metrics_gamma.json").read_text())
    assert printed["config_hash"] == "abc"
    assert "interval" not in printed["survival_rates"]["75%"]
    assert call("verify.py", "--task", "gamma", "--data", data, "--quiet", tmp_path / "g.npz").stdout == ""


def test_the_task_is_the_one_whose_array_the_file_holds(data: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "g.npz", gamma_scores=SCORES)
    call("verify.py", "--data", data, "--quiet", "--no-intervals", tmp_path / "g.npz")
    assert (tmp_path / "metrics_gamma.json").exists()
    np.savez(tmp_path / "both.npz", gamma_scores=SCORES, predictions=GOOD)
    call("verify.py", "--data", data, "--quiet", "--no-intervals", tmp_path / "both.npz")
    assert (tmp_path / "metrics_composition.json").exists()


def test_metrics_of_several_predictions_in_a_folder_are_all_kept(data: Path, tmp_path: Path) -> None:
    for name, scores in (("a", SCORES), ("b", -SCORES)):
        np.savez(tmp_path / f"{name}.npz", gamma_scores=scores)
    for name in "ab":
        call("verify.py", "--data", data, "--quiet", "--no-intervals", tmp_path / f"{name}.npz")
    a, b, last = (
        json.loads((tmp_path / file).read_text())["survival_rates"]
        for file in ("a_metrics_gamma.json", "b_metrics_gamma.json", "metrics_gamma.json")
    )
    assert a != b == last


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        (("--published-order",), "has its rows in the published order already: leave --published-order out"),
        (("--description", "words"), "--description has no effect without --log: leave it out"),
    ],
)
def test_options_without_effect_are_refused(option: tuple[str, ...], expected: str, data: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "p.npz", predictions=GOOD.astype(np.uint8))
    assert expected in refused("--data", data, *option, tmp_path / "p.npz")
    assert not (tmp_path / "metrics_composition.json").exists()


def test_ties_are_told_with_their_cost(data: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "g.npz", gamma_scores=np.round(SCORES, 1))
    printed = " ".join(call("verify.py", "--task", "gamma", "--data", data, tmp_path / "g.npz").stdout.split())
    assert "hadrons share the score at the threshold" in printed
    assert "without the tied hadrons it would be" in printed


def with_value(array: np.ndarray, index: int, value: float) -> np.ndarray:
    changed = array.copy()
    changed[index:] = value
    return changed


REFUSED = {
    "NaN": ("gamma", {"gamma_scores": with_value(SCORES, 7, np.nan)}, "993 of 1000 values are NaN.* index 7 "),
    "all NaN": ("gamma", {"gamma_scores": np.full(N, np.nan)}, "1000 of 1000 values.* index 0 "),
    "infinite": ("gamma", {"gamma_scores": with_value(SCORES, 998, -np.inf)}, "2 of 1000.* index 998 "),
    "float labels": ("composition", {"predictions": GOOD.astype(float)}, "type float64, expected integers 0..4"),
    "boolean labels": ("composition", {"predictions": GOOD > 2}, "type bool, expected integers"),
    "text scores": ("gamma", {"gamma_scores": SCORES.astype(str)}, "type <U"),
    "complex scores": ("gamma", {"gamma_scores": SCORES.astype(complex)}, "type complex128"),
    "objects": ("composition", {"predictions": GOOD.astype(object)}, "holds Python objects"),
    "column": ("composition", {"predictions": GOOD[:, None]}, r"shape \(1000, 1\), expected \(1000,\)"),
    "probabilities": ("composition", {"predictions": np.ones((N, 5))}, r"shape \(1000, 5\), expected \(1000,\)"),
    "scalar": ("gamma", {"gamma_scores": np.float64(1)}, r"shape \(\), expected"),
    "short": ("gamma", {"gamma_scores": SCORES[:-1]}, "999 events, but the test set has 1000"),
    "too large": ("composition", {"predictions": with_value(GOOD, 990, 5)}, r"10 of 1000 labels .* index 990 \(5\)"),
    "negative": ("composition", {"predictions": with_value(GOOD, 0, -1)}, r"outside 0..4, the first at index 0 \(-1\)"),
    "other task": ("gamma", {"predictions": GOOD}, "no array 'gamma_scores' .it holds predictions"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_unusable_predictions_are_refused(case: str, data: Path, tmp_path: Path) -> None:
    task, arrays, message = REFUSED[case]
    file = tmp_path / "bad.npz"
    np.savez(file, **arrays)
    kept = tmp_path / f"metrics_{task}.json"
    kept.write_text("older result")
    assert_refused(f"{file}.*{message}", "--task", task, "--data", data, file)
    assert kept.read_text() == "older result"


def assert_refused(pattern: str, *arguments: str | Path) -> None:
    printed = call("verify.py", *arguments, code=2)
    assert printed.stdout == ""
    assert printed.stderr.count("\n") == 1
    assert re.search(pattern, printed.stderr), printed.stderr


def test_files_that_are_no_predictions(data: Path, tmp_path: Path) -> None:
    good = tmp_path / "good.npz"
    np.savez(good, predictions=GOOD)
    whole = good.read_bytes()
    (tmp_path / "cut.npz").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "empty.npz").write_bytes(b"")
    (tmp_path / "text.npz").write_text("0 1 2 3")
    np.save(tmp_path / "single.npy", GOOD)
    damaged = bytearray(whole)
    damaged[len(whole) // 2] ^= 0xFF
    (tmp_path / "flipped.npz").write_bytes(damaged)
    for name, pattern in {
        "missing.npz": "missing.npz does not exist",
        "cut.npz": "not a complete .npz archive",
        "empty.npz": "not a complete .npz archive",
        "text.npz": "not a complete .npz archive",
        "single.npy": "write it with numpy.savez",
        "flipped.npz": "cannot be read",
        "data": "is a folder",
    }.items():
        assert_refused(pattern, "--data", data, tmp_path / name)
    assert not list(tmp_path.glob("metrics_*"))


def test_truth_that_cannot_be_used(data: Path, tmp_path: Path) -> None:
    file = tmp_path / "p.npz"
    np.savez(file, predictions=GOOD)
    assert_refused("nowhere/composition_test does not exist", "--data", "nowhere", file)
    labels = data / "composition_test" / "labels_composition.npy"
    scalars = data / "composition_test" / "features.npy"
    good = np.load(labels)
    for changed, pattern in (
        (np.where(good == 4, 3, good), r"200 of 1000 labels are outside 0 \(proton\), 1 .* at index 4 \(4\)"),
        (np.zeros_like(good), "no event of class helium, carbon, silicon, iron among 1000"),
        (np.where(good == 4, 9, good), r"200 of 1000 labels are outside 0..4, the first at index 4 \(9\)"),
        (good.astype(float), "type float64, expected"),
        (good[:-1], "features.npy has 1000 rows, but labels_composition.npy beside it has 999"),
    ):
        np.save(labels, changed)
        assert_refused(pattern, "--data", data, file)
    np.save(labels, good)
    scalars.write_bytes(scalars.read_bytes()[:500])
    assert_refused("features.npy cannot be read", "--data", data, file)
    assert not list(tmp_path.glob("metrics_*"))


def test_weighted_hadrons_are_quoted_only_where_weights_determine_a_number(data: Path, tmp_path: Path) -> None:
    weights, hadron = np.ones(N), np.arange(N) % 10 > 0
    np.savez(tmp_path / "g.npz", gamma_scores=SCORES)
    printed = []
    for heavy in (1.0, 500.0):
        weights[1] = heavy
        np.save(data / "gamma_test" / "weight.npy", weights.astype(np.float32))
        printed.append(call("verify.py", "--task", "gamma", "--data", data, tmp_path / "g.npz").stdout)
        metrics = json.loads((tmp_path / "metrics_gamma.json").read_text())
        row = metrics["survival_rates"]["75%"]
        survives = hadron & (row["threshold"] <= SCORES)
        assert row["hadron_survival"] == pytest.approx(weights[survives].sum() / weights[hadron].sum())
        assert row["n_effective"] == pytest.approx(weights[survives].sum() ** 2 / (weights[survives] ** 2).sum())
        assert row["largest_weight"] == pytest.approx(heavy / (weights[survives].sum() + heavy))
        assert row["quoted"] == (heavy == 1.0)
    assert "hadron survival 7." in printed[0]
    assert "hadron survival < " in printed[1]
    np.save(data / "gamma_test" / "weight.npy", np.where(np.arange(N) == 7, -1.0, 1.0).astype(np.float32))
    assert "weight.npy: row 7 holds -1, expected a weight from 0 up" in refused(
        "--task", "gamma", "--data", data, tmp_path / "g.npz"
    )


@pytest.fixture
def counted(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same test sets, simulated in the protocol that counts attempts, below the working folder."""
    for task in ("composition", "gamma"):
        (data / f"{task}_test" / "source.json").write_text(
            json.dumps({"protocol": "2026", "generator": "showerstack simulation"})
        )
    monkeypatch.chdir(tmp_path)
    return data


LABELS = np.where(np.arange(N) % 7 == 0, (GOOD + 1) % 5, GOOD)


def rows_of(log: Path) -> list[list[str]]:
    return [line.split("\t") for line in log.read_text().splitlines()]


def test_the_benchmarks_own_calls_are_attempts(
    counted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.savez("p.npz", predictions=LABELS)
    printed = call("verify.py", "p.npz", "what I tried").stdout
    metrics = json.loads(Path("metrics_composition.json").read_text())
    assert "attempt 1 of 50 in results.tsv; best: attempt 1, " in printed
    assert "not the public test set: published values do not compare" in " ".join(printed.split())
    options = ("--protocol", "2026", "--log", "other.tsv", "--description", "what I tried")
    call("verify.py", *options, "p.npz")
    assert Path("results.tsv").read_bytes() == Path("other.tsv").read_bytes()
    value = verify.evaluate(LABELS, "again,\n from Python")
    assert value == metrics["mean_fraction_error"]
    head, baseline, first, second = rows_of(Path("results.tsv"))
    assert head == ["attempt", "frac_error", "accuracy", "predictions", "description"]
    assert baseline[0] == "0"
    assert first == [
        "1",
        f"{value:.4f}",
        f"{metrics['accuracy']:.4f}",
        "p.npz",
        "what I tried (not the public test set)",
    ]
    assert second == ["2", *first[1:3], "(from python)", "again, from Python (not the public test set)"]
    printed = capsys.readouterr().out
    assert "largest" in printed
    assert "attempt 2 of 50" in printed


def test_gamma_scores_are_attempts_of_their_own_list(counted: Path) -> None:
    right = (np.arange(N) % 10 == 0) + SCORES
    value = verify.evaluate(right.astype(np.float32), "scores", "mine.npz", log="gamma.tsv")
    assert value == 0.0
    assert rows_of(Path("gamma.tsv"))[-1] == ["1", "0.0e+00", "mine.npz", "scores (not the public test set)"]
    with pytest.raises(InputError, match=r"gamma\.tsv is no list of attempts at composition"):
        verify.evaluate(LABELS, "labels", log="gamma.tsv")


@pytest.mark.parametrize(
    ("predictions", "description", "message"),
    [
        (LABELS[1:], "x", "shape"),
        (LABELS + 1, "x", "outside 0..4"),
        (LABELS, " ", "what was tried"),
        (LABELS.astype(float) + np.nan, "x", "finite|not a number|NaN"),
    ],
)
def test_what_cannot_be_scored_is_no_attempt(
    predictions: np.ndarray, description: str, message: str, counted: Path
) -> None:
    with pytest.raises(InputError, match=message):
        verify.evaluate(predictions, description)
    assert not Path("results.tsv").exists()


def test_the_fifty_first_attempt_and_other_protocols_are_refused(counted: Path, data: Path) -> None:
    np.savez("p.npz", predictions=LABELS)
    assert "leave out --protocol" in refused("p.npz", "tried", "--protocol", "v2")
    assert "leave out --description" in refused("p.npz", "tried", "--description", "tried")
    verify.evaluate(LABELS, "first")
    log = Path("results.tsv")
    row = rows_of(log)[-1][1:]
    with log.open("a") as stream:
        stream.writelines("\t".join([str(k), *row]) + "\n" for k in range(2, 51))
    with pytest.raises(InputError, match="50 attempts"):
        verify.evaluate(LABELS, "one too many")
    (data / "composition_test" / "source.json").write_text(
        json.dumps({"protocol": "v2", "generator": "showerstack simulation"})
    )
    log.unlink()
    with pytest.raises(InputError, match="not of protocol 2026"):
        verify.evaluate(LABELS, "v2")
