"""Python functions for users: names, paths or arrays in, short answers out; runs from TOML files."""

from __future__ import annotations

import doctest
import re
import shutil
import tomllib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import showerstack
import showerstack.estimators
from showerstack.runtime.context import PlainConsole, _one_of, bar
from showerstack.runtime.errors import InputError
from showerstack.runtime.files import read_toml
from showerstack.showers.schema import ENERGY
from showerstack.showers.simulation import simulate
from showerstack.stacking.config import write_config
from tests.program import call

OPTIONS = {
    "preset": "quick", "learners": ("quadratic_logit",), "workers": 1, "device": "cpu", "folds": 2, "repeats": 1,
}  # fmt: skip


@pytest.fixture(scope="module")
def table() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    y = rng.integers(0, 2, 300)
    return rng.normal(size=(300, 2)) + 1.5 * y[:, None], y


def test_messages_name_arguments_not_options(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    for asked, message in (
        (lambda: showerstack.spectra("run", "data", out=tmp_path, zenith_max_deg=70), "^zenith_max_deg 70: give"),
        (lambda: showerstack.spectra("run", "data", out=tmp_path, exposure="3 furlongs"), "^exposure '3 furlongs': "),
        (lambda: showerstack.gamma_limit("run", "data", out=tmp_path, efficiency=2.0), "^efficiency 2: give"),
        (lambda: showerstack.spectra("run", tmp_path / "data", out=tmp_path, edges=(15.0, 14.0)), "^energy bins"),
    ):
        with pytest.raises(InputError, match=message):
            asked()


def test_fit_and_predict_take_arrays_and_paths(table: tuple[np.ndarray, np.ndarray], tmp_path: Path) -> None:
    x, y = table
    run = showerstack.fit(x, np.where(y, "b", "a"), run=tmp_path / "run", **OPTIONS)
    assert run.classes == ("a", "b")
    predictions = showerstack.predict(run, x)
    assert predictions.probabilities.shape == (300, 2)
    assert np.mean(predictions.labels == np.where(y, "b", "a")) > 0.8
    assert repr(predictions).startswith("<300 predictions, table: a ")
    assert len(repr(run)) < 60 + len(str(tmp_path))
    pl.DataFrame({"x0": x[:, 0], "x1": x[:, 1]}).write_csv(tmp_path / "new.csv")
    again = showerstack.predict(str(tmp_path / "run"), tmp_path / "new.csv")
    np.testing.assert_allclose(again.probabilities, predictions.probabilities)
    with pytest.raises(InputError, match="column"):
        run.predict(x[:, :1])
    with pytest.raises(InputError, match="data has 300 rows, column 'class' 299"):
        showerstack.fit(x, y[1:], run=tmp_path / "other", **OPTIONS)
    with pytest.raises(InputError, match=r"new\.csv is a table: name its column of classes"):
        showerstack.fit(tmp_path / "new.csv", run=tmp_path / "other", **OPTIONS)


def test_progress_is_told_and_drawn(
    table: tuple[np.ndarray, np.ndarray], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    x, y = table
    told: list[tuple[str, float, float, str, Mapping[str, float]]] = []
    frame = pl.DataFrame({"x": x[:, 0], "nothing": [None] * len(y), "kind": y})

    def impatient(*progress: Any) -> None:
        raise KeyboardInterrupt

    options = {"label": "kind", "run": tmp_path / "run", **OPTIONS}
    with pytest.raises(KeyboardInterrupt):
        showerstack.fit(frame, callback=impatient, **options)
    showerstack.fit(frame, verbose=True, callback=lambda *progress: told.append(progress), **options)
    assert capsys.readouterr().err.count("warning: ") == 3, "of the second fit, which goes on with the run"
    fits = [(done, total) for step, done, total, *_ in told if step == "training"]
    losses = [values["log_loss"] for *_, values in told if values]
    (row,) = showerstack.fitted(tmp_path / "run")._repr_html_().split("<td>table.quadratic_logit</td><td>")[1:]
    assert float(row[:6]) == pytest.approx(np.mean(losses), abs=5e-5), "two folds of equal size"
    assert fits[0] == (0, 2)
    assert fits[-1] == (2, 2)
    told.clear()
    showerstack.predict(tmp_path / "run", frame.drop("kind"), callback=lambda *progress: told.append(progress))
    assert told[-1][0] == "predicting"
    assert told[-1][1] == told[-1][2]
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("unit", "one"),
    [("energies", "energy"), ("predictions of fits", "prediction of fits"), ("fits", "fit"), ("MB", "MB"), ("", "")],
)
def test_times_are_those_of_one(unit: str, one: str) -> None:
    assert _one_of(unit) == one


def test_a_bar_is_drawn_in_a_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    cells = []

    class Cell:
        def update(self, drawn: Any) -> None:
            cells.append(drawn._repr_mimebundle_({}, set())["text/plain"])

    def display(drawn: Any, *, display_id: bool) -> Cell:
        return Cell()

    monkeypatch.setattr("IPython.display.display", display)
    with bar("training", "fits", console=PlainConsole(force_jupyter=True)) as progress:
        progress(0, 4, "running a")
        progress(1, 4)  # at once after the first: not drawn
        progress(3, 4)  # nor this; what is over is shown as done
    assert len(cells) == 2
    assert "running a" in cells[0]
    assert "training" in cells[1]
    assert "100%" in cells[1]


@pytest.mark.slow
def test_a_run_keeps_its_options_as_toml(
    table: tuple[np.ndarray, np.ndarray], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("showerstack.report.outcome.write_table_report", lambda run, **options: run)
    x, y = table
    file = tmp_path / "x [1].csv"
    pl.DataFrame({"x0": x[:, 0], "x1": x[:, 1], "kind": y}).write_csv(file)
    asked = tmp_path / "asked.toml"
    asked.write_text(
        f'table = "{file}"\nlabel = "kind"\npreset = "quick"\nlearners = ["quadratic_logit"]\nfolds = 2\n'
        "seed = 5\nholdout = 0.2\nworkers = 1\n"
    )
    for run, config in (("a", asked), ("b", tmp_path / "a" / "config.toml")):
        call("cli.py", "stack", "--config", config, "--run", tmp_path / run, "--quiet")
    one, two = (read_toml(tmp_path / run / "config.toml") for run in "ab")
    assert one["holdout"] == two["holdout"] == 0.2
    assert one["seed"] == 5
    assert one | {"run": ""} == two | {"run": ""}
    predictions = [(tmp_path / run / "predictions.parquet").read_bytes() for run in "ab"]
    assert predictions[0] == predictions[1]
    asked.write_text("folds = 2\nfoldz = 3\n")
    assert "option foldz" in call("cli.py", "stack", "--config", asked, "--run", tmp_path / "c", code=2).stderr


def test_score_takes_arrays_files_and_predictions(tmp_path: Path) -> None:
    labels = np.arange(1000) % 5
    result = showerstack.score(labels, labels, task="composition")
    assert float(result) == 0
    assert repr(result) == "<fraction error 0 [0, 0.0003873], 1,000 events>"
    test = tmp_path / "composition_test"
    test.mkdir()
    np.save(test / "labels_composition.npy", labels.astype(np.int8))
    np.save(test / "features.npy", np.full((1000, 5), 15, np.float16))
    np.savez(tmp_path / "predictions.npz", predictions=labels)
    assert showerstack.score(tmp_path / "predictions.npz", tmp_path).metrics["accuracy"] == 1
    assert not list(tmp_path.glob("metrics*")), "nothing is written"
    guess = showerstack.Predicted("composition", tuple("abcde"), np.full((1000, 5), 0.2), labels * 0, None)
    assert showerstack.score(guess, tmp_path).value == pytest.approx(0.32, abs=0.001)
    with pytest.raises(InputError, match="say what the predictions are of"):
        showerstack.score(labels, labels)
    with pytest.raises(InputError, match="999 predictions, but the test set has 1000"):
        showerstack.score(labels[1:], tmp_path, task="composition")


@pytest.mark.filterwarnings("ignore::showerstack.runtime.errors.Remark")
def test_notebooks_show_tables_and_figures(
    table: tuple[np.ndarray, np.ndarray], tiny_composition: Path, tmp_path: Path
) -> None:
    x, y = table
    run = showerstack.fit(x, np.where(y, "<b>", "a"), run=tmp_path / "run", **OPTIONS)
    predicted = run.predict(x)
    share = np.mean(predicted.labels == "<b>")
    assert f"<td>&lt;b&gt;</td><td>{100 * share:.1f} %</td><td>" in predicted._repr_html_()
    (row,) = [row for row in run._repr_html_().split("<tr>") if row.startswith("<td>table.quadratic_logit")]
    assert re.fullmatch(r"<td>table.quadratic_logit</td><td>0\.\d{4}</td><td>1\.0000</td></tr>(</table>)?", row)
    assert "<b>" not in run._repr_html_() + predicted._repr_html_()
    scored = showerstack.Scored("accuracy", 0.91, 0.9, 0.92, 300)
    assert "<td>accuracy</td><td>0.91</td><td>[0.9, 0.92]</td><td>300</td>" in scored._repr_html_()
    bars = predicted.plot().axes[0].patches
    assert [bar.get_width() for bar in bars] == pytest.approx([100 * share, 100 - 100 * share])
    estimates = {"lg_energy": np.array([14, 15, np.nan, 16.0]), "lg_energy_error": np.full(4, 0.1)}
    energy = showerstack.Predicted("energy", ("a",), np.ones((4, 1)), np.zeros(4), None, arrays=estimates)
    assert repr(energy) == "<4 predictions: lg(E/eV) 15.00, half of them 14.50 to 15.50>"
    assert "<td>lg_energy</td><td>14.50</td><td>15.00</td><td>15.50</td>" in energy._repr_html_()
    gamma = showerstack.Predicted("gamma", ("gamma", "hadron"), np.full((9, 2), 0.5), np.zeros(9), np.arange(9.0))
    assert gamma.plot().axes[0].get_xlabel() == "gamma score"
    with pytest.raises(InputError, match="no events to be drawn"):
        showerstack.Predicted("table", ("a",), np.zeros((0, 1)), np.zeros(0), None).plot()
    figure = showerstack.display(tiny_composition / "composition_test", 3)
    assert figure.get_suptitle().startswith("event 3 of composition")
    drawn = run.draw(x, 0)
    assert "what moved" in drawn.axes[1].get_title()
    for one in (predicted.plot(), figure, drawn):
        assert one._repr_png_().startswith(b"\x89PNG"), "also where pyplot was never imported"


def test_a_feature_table_is_a_frame(tiny_composition: Path) -> None:
    folder = tiny_composition / "composition_test"
    frame = showerstack.feature_table(folder, workers=1)
    assert frame["event"].to_list() == list(range(len(np.load(folder / "features.npy"))))
    assert {"E", "fit_lg_ne", "mu_e_fit"} <= set(frame.columns)


def test_true_classes_and_scores_are_never_cast() -> None:
    labels = np.arange(1000) % 5
    assert float(showerstack.score(labels, labels.astype(float), task="composition")) == 0
    for wrong in (labels + 0.3, np.where(labels == 0, 0.5, labels), labels + 256, labels - 1):
        with pytest.raises(InputError, match=r"true classes: event 0 has label .* expected 0\.\.4 or proton, helium"):
            showerstack.score(labels, wrong, task="composition")
    hadron = np.arange(1000) % 2
    scores = np.where(hadron == 0, 2**53 + 1, 2**53)
    with pytest.raises(InputError, match="row 0 holds 9007199254740993, which float64 may not tell"):
        showerstack.score(scores, hadron, task="gamma")
    assert float(showerstack.score(scores - 2**53, hadron, task="gamma")) == 0


def test_missing_values_are_not_scored() -> None:
    labels = np.arange(40) % 2
    masked = np.ma.masked_array(labels, mask=labels == 1)
    for values in (masked, [None, *labels[1:].tolist()], np.where(labels, np.nan, 0.0)):
        with pytest.raises(InputError, match=r"predictions: row [01] is missing"):
            showerstack.score(values, labels, task="table")
        with pytest.raises(InputError, match=r"true classes: row [01] is missing"):
            showerstack.score(labels, values, task="table")
        with pytest.raises(InputError, match=r"groups: row [01] is missing"):
            showerstack.score(labels, labels, task="table", groups=values)
    with pytest.raises(InputError, match="event 0 has label True"):
        showerstack.score(labels * 0.5, labels == 0, task="gamma")


def test_classes_of_a_table_are_compared_as_they_are() -> None:
    large = 2**53 + np.arange(40) % 2
    assert float(showerstack.score(large, np.full(40, 2.0**53), task="table")) == 0.5
    assert float(showerstack.score(["1"] * 20 + ["1.0"] * 20, ["1"] * 40, task="table")) == 0.5
    assert float(showerstack.score([1.0] * 40, [1] * 40, task="table")) == 0
    with pytest.raises(InputError, match="predictions are bool, true classes int64: give both"):
        showerstack.score(large > 2**53, large, task="table")


plain = st.text() | st.integers(-(2**60), 2**60) | st.booleans() | st.floats(allow_nan=False, allow_infinity=False)
values = plain | st.lists(plain, max_size=3) | st.none()


@pytest.mark.slow
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # cores are shared
@given(st.dictionaries(st.text(), values | st.dictionaries(st.text(), values, min_size=1, max_size=3), max_size=4))
def test_toml_is_read_back(tmp_path_factory: pytest.TempPathFactory, options: dict) -> None:
    def without_none(content: dict) -> dict:
        given = {name: value for name, value in content.items() if value is not None}
        return {name: without_none(value) if isinstance(value, dict) else value for name, value in given.items()}

    file = tmp_path_factory.mktemp("toml") / "config.toml"
    try:
        write_config(file, options)
    except UnicodeEncodeError:
        return  # lone surrogates are no text
    assert tomllib.loads(file.read_text(encoding="utf-8")) == without_none(options)


def test_what_is_no_toml_is_told(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text("folds = [")
    with pytest.raises(InputError, match=r"a\.toml is not TOML: "):
        read_toml(tmp_path / "a.toml")


def test_data_frames_are_taken(tmp_path: Path) -> None:
    x = 1.5 * np.arange(60.0)
    frame = pl.DataFrame({"x": x, "kind": np.where(x < 45, "low", "high")})
    run = showerstack.fit(frame, label="kind", run=tmp_path / "run", **OPTIONS)
    assert run.classes == ("high", "low")
    predictions = run.predict(frame.drop("kind").to_pandas())
    assert np.mean(predictions.labels == frame["kind"].to_numpy()) > 0.9
    with pytest.raises(InputError, match="say what the classes are"):
        showerstack.fit(frame, run=tmp_path / "other", **OPTIONS)
    assert not list(tmp_path.glob("other*"))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"learner": "lightgbm"}, "unknown option learner: did you mean learners?"),
        ({"learners": "lightgbm, catbost"}, "unknown learner 'catbost': did you mean catboost?"),
        ({"nonsense": 1}, "unknown option nonsense$"),
    ],
)
def test_options_that_do_not_exist_are_named(options: dict, expected: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=re.escape(expected).replace(r"\$", "$")):
        showerstack.fit(tmp_path, run=tmp_path / "run", **options)


@pytest.mark.filterwarnings("ignore::showerstack.runtime.errors.Remark")
def test_data_that_cannot_be_written_are_predicted(
    tiny_composition: Path, composition_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "data"
    shutil.copytree(tiny_composition / "composition_test", data)
    want = showerstack.predict(composition_run, data, no_table=True, workers=1).probabilities
    monkeypatch.setattr("showerstack.features.build._can_be_written", lambda folder: False)
    got = showerstack.predict(composition_run, data, workers=1).probabilities
    np.testing.assert_array_equal(got, want)
    assert list(tmp_path.iterdir()) == [data]
    frame = showerstack.feature_table(data, out=tmp_path / "table", workers=1)
    assert len(frame) == len(want)
    assert {path.name for path in tmp_path.iterdir()} == {"data", "table"}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::showerstack.runtime.errors.Remark")
def test_predictions_in_threads_are_those_of_one_after_the_other(
    table: tuple[np.ndarray, np.ndarray], tmp_path: Path
) -> None:
    x, y = table
    options = {**OPTIONS, "learners": ("table.logistic", "table.mlp")}
    runs = [showerstack.fit(x, y, run=tmp_path / f"run{seed}", seed=seed, **options) for seed in (1, 2)]
    jobs = [(runs[k % 2], x[: 1 + 37 * k % 300], 1 + k % 3) for k in range(12)]

    def predicted(job: tuple[showerstack.Fitted, np.ndarray, int]) -> np.ndarray:
        run, rows, workers = job
        return showerstack.predict(run, rows, workers=workers).probabilities

    expected = [predicted(job) for job in jobs]
    for threads in (2, 4, 8):
        with ThreadPoolExecutor(threads) as pool:
            for got, alone in zip(pool.map(predicted, jobs), expected, strict=True):
                np.testing.assert_array_equal(got, alone)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::showerstack.runtime.errors.Remark")
def test_arrays_that_cannot_be_written_are_used(table: tuple[np.ndarray, np.ndarray], tmp_path: Path) -> None:
    options = {"preset": "quick", "learners": ["table.logistic", "table.extra_trees"], "folds": 2, "repeats": 1}
    want = None
    for k, name in enumerate(("own", "read-only", "mapped")):
        x, y = (array.copy() for array in table)
        if name == "mapped":
            for part, array in (("x", x), ("y", y)):
                np.save(tmp_path / f"{part}.npy", array)
            x, y = (np.load(tmp_path / f"{part}.npy", mmap_mode="r") for part in ("x", "y"))
        elif name == "read-only":
            x.setflags(write=False)
            y.setflags(write=False)
        weights = np.ones(len(y))
        weights.setflags(write=name == "own")
        model = showerstack.StackClassifier(tmp_path / f"run{k}", **options).fit(x, y, sample_weight=weights)
        got = model.predict_proba(x[:20])
        want = got if want is None else want
        np.testing.assert_array_equal(got, want)


def test_a_run_on_showers_predicts_folders(tmp_path: Path) -> None:
    run = showerstack.Fitted(tmp_path, "composition", tuple("abcde"), "stack", ("lightgbm",))
    with pytest.raises(InputError, match="a composition run predicts dataset folders: give a path, not ndarray"):
        run.predict(np.zeros((3, 16, 16, 2)))
    assert re.fullmatch(r"\d+\.\d+\S*", showerstack.__version__)


@pytest.mark.parametrize("names", [(1, 2), ("no", "yes"), (-0.5, 3.0), (True, False)], ids=str)
def test_labels_are_the_users_values(
    names: tuple[object, object], table: tuple[np.ndarray, np.ndarray], tmp_path: Path
) -> None:
    x, y = table
    labels = np.array(names)[y]
    run = showerstack.fit(x, labels, run=tmp_path / "run", **OPTIONS)
    assert set(run.classes) == set(names)
    predictions = run.predict(x)
    assert float(showerstack.score(predictions, labels)) == np.mean(predictions.labels != labels) < 0.2
    assert float(showerstack.score(predictions, predictions.labels)) == 0
    strange = labels.astype(object)
    strange[3] = "seven"
    with pytest.raises(InputError, match=r"1 true classes are none of the run's, the first in row 3 \('seven'\)"):
        showerstack.score(predictions, strange)


def test_a_table_of_the_user_is_never_overwritten(table: tuple[np.ndarray, np.ndarray], tmp_path: Path) -> None:
    x, y = table
    own = tmp_path / "wine.parquet"
    own.write_bytes(b"mine")
    showerstack.fit(x, y, run=tmp_path / "wine", **OPTIONS)
    assert own.read_bytes() == b"mine"


def test_predictions_of_other_events_are_not_scored(tmp_path: Path) -> None:
    labels = np.arange(1000) % 5
    test = tmp_path / "composition_test"
    test.mkdir()
    np.save(test / "labels_composition.npy", labels.astype(np.int8))
    np.save(test / "features.npy", np.full((1000, 5), 15, np.float16))
    np.save(test / "matrices.npy", np.zeros((1000, 16, 16, 2), np.float16))
    of_others = showerstack.Predicted(
        "composition", tuple("abcde"), np.full((1000, 5), 0.2), labels, None, test_fingerprint="0" * 64
    )
    with pytest.raises(InputError, match="was made for other events"):
        showerstack.score(of_others, tmp_path)
    np.savez(tmp_path / "predictions.npz", predictions=labels, config_hash="1", test_fingerprint="0" * 64)
    with pytest.raises(InputError, match="was made for other events"):
        showerstack.score(tmp_path / "predictions.npz", tmp_path)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::showerstack.runtime.errors.Remark")
def test_examples_in_docstrings(
    tiny_composition: Path, composition_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulate(ENERGY, tmp_path / "data", n_train=700, n_test=100, seed=3, train_cuts="test", workers=1)
    for part in tiny_composition.iterdir():
        (tmp_path / "data" / part.name).symlink_to(part)
    shutil.copytree(composition_run, tmp_path / "runs" / "composition")  # fit opens it: the options are its own
    monkeypatch.chdir(tmp_path)
    before = (tmp_path / "runs" / "composition" / "predictions.npz").stat().st_mtime_ns
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    examples = [
        one for module in (showerstack.api, showerstack.estimators) for one in doctest.DocTestFinder().find(module)
    ]
    for one in examples:
        runner.run(one)
    assert runner.summarize().failed == 0
    assert {one.name.split(".")[-1] for one in examples if one.examples} == {
        "fit", "predict", "score", "StackClassifier", "ShowerClassifier", "EnergyRegressor"
    }  # fmt: skip
    assert (tmp_path / "runs" / "composition" / "predictions.npz").stat().st_mtime_ns == before
