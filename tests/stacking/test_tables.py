"""Tables of any origin, on a problem whose Bayes-optimal answer is known, and as users bring them.

Columns are recognised: numbers, gaps, categories, times, identifiers, serial numbers. Labels in the test table are not
read in training; labels of another file are the same classes, however a number is written.
"""

from __future__ import annotations

import datetime
import gzip
import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import cli
from showerstack import stacking
from showerstack.models.registry import LEARNERS
from showerstack.report.outcome import outcome
from showerstack.report.public.leaderboard import table_standings
from showerstack.runtime.context import Context
from showerstack.runtime.errors import InputError
from showerstack.runtime.files import read_json
from showerstack.scoring.metrics.gamma import area_under_curve
from showerstack.stacking.inputs.columns import Plan, plan, repeated_remarks
from showerstack.stacking.inputs.tables import class_positions, read_table
from showerstack.stacking.meta.softmax import log_loss_per_event
from showerstack.stacking.predict import predict
from showerstack.stacking.run.config import TableConfig
from showerstack.stacking.train import _table_job, stack
from tests.stacking.conftest import CLASSES, bayes_log_proba, gaussians


def _config(run: Path, train: Path, **options: object) -> TableConfig:
    standard = {
        "preset": "quick",
        "folds": 3,
        "repeats": 1,
        "workers": 1,
        "device": "cpu",
        "fast": False,
        "learners": ("fake_linear", "fake_useless"),
    }
    return TableConfig(run=run, table=train, label="kind", **{**standard, **options})


@pytest.mark.usefixtures("fakes")
def test_two_gaussians_are_learned_but_not_beaten(two_gaussians: tuple[Path, Path], tmp_path: Path) -> None:
    train, test = two_gaussians
    result = stack(_config(tmp_path / "run", train, test_table=test))
    metrics = json.loads((result.run / "metrics_table.json").read_text())
    points, labels = gaussians(1200, 1)
    exact = bayes_log_proba(points)
    oof = pl.read_parquet(result.run / "oof" / "stack.parquet").select(f"logp_{c}" for c in sorted(CLASSES)).to_numpy()
    # Classes are sorted by name: "far" is 0 and "near" is 1 here, the reverse of gaussians().
    loss = log_loss_per_event(oof[:, ::-1], labels)
    excess = loss - log_loss_per_event(exact, labels)
    error = excess.std() / np.sqrt(len(excess))
    assert -2 * error < excess.mean() < 0.01
    area = metrics["systems"]["fake_linear"]["auc"]
    truth, _ = area_under_curve(labels == 1, exact[:, 1])
    assert area["low"] < truth < area["high"]
    assert metrics["systems"]["fake_useless"]["auc"]["value"] == pytest.approx(0.5, abs=0.05)
    assert not result.manifest["gate"]["claimed"], "a useless partner adds nothing to the exact model"

    predicted = pl.read_parquet(result.run / "predictions.parquet")
    assert predicted.columns == ["row", "p_far", "p_near", "predicted"]
    new_points, new_labels = gaussians(800, 2)
    right = predicted["predicted"].to_numpy() == np.array(CLASSES)[new_labels]
    best = np.argmax(bayes_log_proba(new_points), axis=1) == new_labels
    assert abs(right.mean() - best.mean()) < 0.02


@pytest.mark.usefixtures("fakes")
def test_a_label_column_in_the_test_table_is_never_seen(two_gaussians: tuple[Path, Path], tmp_path: Path) -> None:
    train, test = two_gaussians
    poisoned = tmp_path / "poisoned.csv"
    pl.read_parquet(test).with_columns(pl.lit("nonsense").alias("kind"), pl.lit(1.0).alias("z")).write_csv(poisoned)
    plain = stack(_config(tmp_path / "a", train, test_table=test))
    other = stack(_config(tmp_path / "b", train, test_table=poisoned))
    np.testing.assert_allclose(plain.predictions.log_proba, other.predictions.log_proba, rtol=1e-6)
    assert "z" in other.manifest["remarks"][0]
    assert "kind" not in pl.read_parquet(other.run / "table" / "test.parquet").columns


@pytest.mark.usefixtures("fakes")
@pytest.mark.parametrize("name", ["__label__", "__group__", "label", "event", "row"])
def test_columns_may_have_any_name(name: str, two_gaussians: tuple[Path, Path], tmp_path: Path) -> None:
    frame = pl.read_parquet(two_gaussians[0]).with_row_index("box")
    noise = np.random.default_rng(0).normal(size=frame.height)
    frame.with_columns(pl.Series(name, noise)).write_parquet(tmp_path / "named.parquet")
    frame.with_columns(pl.Series("noise", noise)).write_parquet(tmp_path / "plain.parquet")
    options: dict[str, object] = {"group": "box", "learners": ("fake_linear",), "metas": ("average",)}
    named, plain = (
        stack(_config(tmp_path / kind, tmp_path / f"{kind}.parquet", **options)) for kind in ("named", "plain")
    )
    accuracy = [result.manifest["learners"][0]["accuracy"] for result in (named, plain)]
    assert accuracy[0] == accuracy[1] < 0.9
    assert named.manifest["learners"][0]["features"] == ["x", "y", name]


@pytest.mark.usefixtures("fakes")
def test_a_run_predicts_new_tables_alike(two_gaussians: tuple[Path, Path], tmp_path: Path) -> None:
    train, test = two_gaussians
    result = stack(_config(tmp_path / "run", train, test_table=test))
    run = stacking.load(result.run)
    ctx = Context(trusted=True)  # no other process knows the fakes
    predictions = predict(run, test, ctx).concatenated()
    np.testing.assert_array_equal(predictions.log_proba, result.predictions.log_proba)
    predict(run, test, ctx).write(tmp_path / "new.csv")
    stored = pl.read_csv(tmp_path / "new.csv")
    np.testing.assert_allclose(stored["p_far"].to_numpy(), np.exp(predictions.log_proba)[:, 0], rtol=1e-12)
    assert read_json(tmp_path / "new.csv.json")["config_hash"] == result.manifest["config_hash"]
    with pytest.raises(InputError, match="give it a table"):
        predict(run, tmp_path)


def test_real_learners_take_missing_values_three_classes_and_groups(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    n = 600
    kind = rng.integers(0, 3, n)
    x = kind + 0.5 * rng.normal(size=n)
    frame = pl.DataFrame(
        {"x": np.where(rng.random(n) < 0.2, np.nan, x), "y": rng.normal(size=n), "kind": kind, "box": np.arange(n) // 4}
    ).with_columns(pl.when(pl.col("y") < -1).then(None).otherwise(pl.col("y")).alias("y"))
    frame.write_csv(tmp_path / "train.csv")
    config = TableConfig(
        run=tmp_path / "run", table=tmp_path / "train.csv", label="kind", group="box", preset="quick", folds=3,
        learners=("lightgbm", "random_forest"), workers=1, device="cpu", repeats=1, fast=False,
        settings={"lightgbm": {"rounds": 40}, "random_forest": {"trees": 40}},
    )  # fmt: skip
    result = stack(config)
    metrics = json.loads((result.run / "metrics_table.json").read_text())["systems"]["stack"]
    assert metrics["accuracy"]["value"] > 0.6
    assert metrics["auc"]["low"] > 0.8
    folds = np.load(result.run / "folds.npy")[0]
    assert all(len(set(folds[k : k + 4])) == 1 for k in range(0, n, 4))
    assert pl.read_parquet(result.run / "predictions.parquet").height == n


@pytest.mark.usefixtures("fakes")
def test_classes_that_differ_in_spaces_or_letters_alone_are_remarked(
    two_gaussians: tuple[Path, Path], tmp_path: Path
) -> None:
    frame = pl.read_parquet(two_gaussians[0])
    spaced = pl.when(pl.int_range(pl.len()) % 4 == 0).then(pl.col("kind") + " ").otherwise(pl.col("kind"))
    frame.with_columns(kind=spaced).write_parquet(tmp_path / "spaced.parquet")
    options = {"test_table": None, "learners": ("fake_linear",)}
    result = stack(_config(tmp_path / "run", tmp_path / "spaced.parquet", **options))
    (remark,) = [line for line in result.manifest["remarks"] if "differ" in line]
    assert "labels 'far', 'far ' and 'near', 'near ' differ in spaces or case alone: they are classes" in remark
    result = stack(_config(tmp_path / "plain", two_gaussians[0], **options))
    assert not any("differ" in line for line in result.manifest["remarks"])


def test_area_under_curve_and_its_error() -> None:
    areas, errors = [], []
    for seed in range(200):
        points, labels = gaussians(300, seed)
        area, error = area_under_curve(labels == 1, points[:, 0])
        brute = np.subtract.outer(points[labels == 1, 0], points[labels == 0, 0])
        assert area == pytest.approx((brute > 0).mean() + 0.5 * (brute == 0).mean())
        areas.append(area)
        errors.append(error)
    assert np.mean(errors) == pytest.approx(np.std(areas), rel=0.2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"label": "sort"}, "no column 'sort'"),
        ({"group": "crate"}, "no column 'crate'"),
        ({"table": Path("nowhere.csv")}, "nowhere.csv does not exist"),
        ({"label": "x"}, "different values"),
        ({"test_table": "short"}, "lacks columns of the training table: y"),
        ({"learners": ("lenet",)}, "needs detector grids"),
        ({"learners": ("oracle",)}, "unknown learner 'oracle'"),
        ({"folds": 1}, "option folds"),
        ({"fold": 3}, "option fold"),
        ({"metas": ("magic",)}, "unknown meta-learner 'magic'"),
    ],
)
def test_bad_tables_are_refused_in_one_line(
    two_gaussians: tuple[Path, Path], tmp_path: Path, change: dict[str, object], message: str
) -> None:
    train, test = two_gaussians
    pl.read_parquet(test).drop("y").write_parquet(tmp_path / "short.parquet")
    if change.get("test_table"):
        change = {"test_table": tmp_path / "short.parquet"}
    options = {"run": tmp_path / "run", "table": train, "label": "kind", "preset": "quick", "device": "cpu", **change}
    with pytest.raises(InputError, match=message) as caught:
        stack(TableConfig(**options))
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run" / "learners").exists()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.parquet", b"PAR1 cut off", "cannot be read"),
        ("b.csv", b"", "cannot be read"),
        ("c.csv", b"x,kind\n", "has no rows"),
        ("d.txt", b"x,kind\n1,2\n", "expected a table named"),
        ("e.csv", b"x,kind\n1,a\n2,\n3,b\n", "row 1, column 'kind' is empty"),
        ("f.csv", b"x,kind\n1,a\n2,a\n", "one value only"),
        ("g.csv", b"x,kind\n,a\n,b\n", "no usable column"),
    ],
)
def test_unreadable_tables_are_refused(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=message) as caught:
        stack(TableConfig(run=tmp_path / "run", table=tmp_path / name, label="kind", device="cpu"))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("value", [float("inf")])
def test_infinite_values_name_column_and_row(tmp_path: Path, value: float) -> None:
    pl.DataFrame({"x": [0.0, value, 1.0, 2.0], "kind": [0, 1, 0, 1]}).write_parquet(tmp_path / "t.parquet")
    with pytest.raises(InputError, match="row 1, column 'x' is infinite"):
        stack(TableConfig(run=tmp_path / "run", table=tmp_path / "t.parquet", label="kind", device="cpu"))


@pytest.mark.usefixtures("fakes")
def test_the_plain_average_of_two_that_are_alike_ships(two_gaussians: tuple[Path, Path], tmp_path: Path) -> None:
    train, test = two_gaussians
    options = {"test_table": test, "learners": ("fake_noisy", "fake_noisy_twin"), "metas": "average", "prune": 0}
    result = stack(_config(tmp_path / "run", train, **options))
    assert result.manifest["gate"]["shipped"]
    assert result.manifest["meta"]["chosen"] == "average"
    by_name = {row["name"]: row["log_loss"] for row in result.manifest["learners"]}
    assert result.manifest["meta"]["log_losses"]["average"] < min(by_name.values())
    run = stacking.load(result.run)
    assert set(run.chain.needed) == {"fake_noisy", "fake_noisy_twin"}
    predicted = predict(run, test, Context(trusted=True)).concatenated().log_proba
    with np.load(result.run / "test" / "average.npz") as stored:
        np.testing.assert_allclose(predicted, stored["log_proba"])


EFFECT = {"red": 2.0, "green": 0.0, "blue": -2.0}
MADE_FOR_TABLES = [name for name, entry in LEARNERS.items() if entry.for_tables]


def strange(n: int, seed: int) -> pl.DataFrame:
    """Return rows whose class depends on a colour, on one of 12 towns and a little on a number with gaps."""
    rng = np.random.default_rng(seed)
    colour = rng.choice(list(EFFECT), n)
    town = rng.integers(0, 12, n)
    x = rng.normal(size=n)
    logit = np.array([EFFECT[c] for c in colour]) + np.where(town % 2, 1.5, -1.5) + x
    label = np.where(rng.random(n) < 1 / (1 + np.exp(-logit)), "yes", "no")
    return pl.DataFrame(
        {
            "name": [f"row {k}" for k in range(n)],
            "Ze": np.where(rng.random(n) < 0.1, "NA", np.round(x, 3).astype(str)),
            "colour": colour,
            "town": [f"town {k}" for k in town],
            "stamp": 1_700_000_000 + rng.integers(0, 1000, n),
            "flag": rng.random(n) < 0.5,
            "class": label,
        }
    )


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("strange")
    strange(700, 1).write_csv(folder / "train.tsv", separator="\t")
    strange(500, 2).write_csv(folder / "test.tsv", separator="\t")
    return folder


def _strange_config(folder: Path, run: Path, **options: object) -> TableConfig:
    standard = {
        "test_table": folder / "test.tsv", "id": "name", "preset": "quick", "folds": 2, "repeats": 1, "workers": 1,
        "device": "cpu", "fast": False,
        "settings": {name: {"trees": 30} for name in ("table.random_forest", "table.extra_trees")}
        | {f"table.{name}": {"rounds": 60} for name in ("lightgbm", "catboost", "xgboost", "hist_boosting")}
        | {"table.mlp": {"epochs": 6}},
    }  # fmt: skip
    return TableConfig(run=run, table=folder / "train.tsv", label="class", **{**standard, **options})


def test_every_learner_for_tables_uses_categories(tables: Path, tmp_path: Path) -> None:
    result = stack(_strange_config(tables, tmp_path / "run", learners=tuple(MADE_FOR_TABLES)))
    assert [row["error"] for row in result.manifest["learners"]] == [None] * len(MADE_FOR_TABLES)
    assert result.manifest["learners"][0]["features"] == ["Ze", "colour", "town", "stamp", "flag"]
    content = outcome(result.run).content
    for name, metrics in content["test"]["systems"].items():
        # With the number alone the area is .64, without the towns at most .80.
        assert metrics["auc"]["value"] > 0.80, name
    best = min(m["log_loss"]["value"] for m in content["test"]["systems"].values())
    assert content["test"]["systems"][content["shipped"]]["log_loss"]["value"] < best + 0.02
    predicted = pl.read_parquet(result.run / "predictions.parquet")
    assert predicted["name"].to_list() == [f"row {k}" for k in range(500)]
    page = (result.run / "report.html").read_text()
    assert [word in page for word in ("Which columns matter", "town", "Class by class", "Calibration of")] == [True] * 4
    standing = table_standings([result.run])
    assert next(iter(standing.values()))[0].metrics == {
        key: content["test"]["systems"][content["shipped"]][key] for key in ("log_loss", "accuracy", "auc")
    }

    new = strange(50, 3).with_columns(pl.lit("orange").alias("colour"))
    new.write_csv(tmp_path / "new.tsv", separator="\t")
    content = predict(stacking.load(result.run), tmp_path / "new.tsv", Context(trusted=True))
    assert "'orange', which training rows do not have" in content.remarks[0]
    content.write(tmp_path / "predicted.parquet")
    frame = pl.read_parquet(tmp_path / "predicted.parquet")
    assert frame["name"].to_list() == new["name"].to_list()
    assert np.isfinite(frame.select(pl.selectors.starts_with("p_")).to_numpy()).all()


def test_test_labels_do_not_move_predictions(tables: Path, tmp_path: Path) -> None:
    one = stack(_strange_config(tables, tmp_path / "a", learners=("table.logistic",)))
    blind = pl.read_csv(tables / "test.tsv", separator="\t").with_columns(pl.lit("no").alias("class"))
    blind.write_csv(tmp_path / "blind.tsv", separator="\t")
    config = _strange_config(tables, tmp_path / "b", learners=("table.logistic",), test_table=tmp_path / "blind.tsv")
    other = stack(config)
    np.testing.assert_array_equal(one.predictions.log_proba, other.predictions.log_proba)


def test_one_row_to_predict_loses_no_learner(tables: Path, tmp_path: Path) -> None:
    strange(1, 5).drop("class").write_csv(tmp_path / "one.tsv", separator="\t")
    names = ("table.logistic", "table.extra_trees")
    result = stack(_strange_config(tables, tmp_path / "run", learners=names, test_table=tmp_path / "one.tsv"))
    assert [row["status"] for row in result.manifest["learners"]] == ["ok", "ok"]
    assert not any("may have seen" in remark for remark in result.manifest["remarks"])


def test_learners_tuned_for_showers_give_way(tables: Path, tmp_path: Path) -> None:
    config = _strange_config(
        tables, tmp_path / "run", learners=("lightgbm", "pretrained"), settings={"lightgbm": {"rounds": 9}}
    )
    result = stack(config)
    assert [row["name"] for row in result.manifest["learners"]] == ["table.lightgbm"]
    message = " ".join(result.manifest["remarks"])
    assert "table.lightgbm takes its place" in message
    assert "pretrained starts from a network of showers" in message
    header = json.loads((result.run / "learners" / "table.lightgbm" / "fold-0" / "learner.json").read_text())
    assert header["settings"]["rounds"] == 9
    with pytest.raises(InputError, match="pretrained can be trained on showers only"):
        stack(_strange_config(tables, tmp_path / "none", learners=("pretrained",)))
    assert not (tmp_path / "none").exists()


def test_settings_follow_the_number_of_rows() -> None:
    leaves = [LEARNERS["table.lightgbm"].settings_for("good", n)["num_leaves"] for n in (100, 5_000, 50_000)]
    assert leaves == [7, 15, 31]
    config = TableConfig(run="r", table="t", label="c", preset="good")
    few, remarks = config.for_rows(np.repeat([0, 1], [100, 4]), ("a", "b"))
    assert (few.n_folds, few.repeats, few.holdout) == (4, 3, 0.0)
    assert remarks == ["class 'b' has 4 rows: 4 folds instead of 8"]
    many, _ = config.for_rows(np.repeat([0, 1], 4000), ("a", "b"))
    assert (many.n_folds, many.repeats, many.holdout) == (8, 1, 0.1)
    assert (few.fast, many.fast) == (False, True), "no student of few rows"
    wanted, _ = config.model_copy(update={"fast": True}).for_rows(np.repeat([0, 1], 50), ("a", "b"))
    assert wanted.fast, "unless it is asked for"


def test_a_tiny_table_starts_no_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 7)
    cases = ((300, None, "quick", 1), (300, 3, "quick", 3), (30_000, None, "quick", 7), (300, None, "good", 7))
    for n, asked, preset, workers in cases:
        points, labels = gaussians(n, seed=1)
        pl.DataFrame({"x": points[:, 0], "kind": [CLASSES[k] for k in labels]}).write_csv(tmp_path / "t.csv")
        places = {"run": tmp_path / "run", "table": tmp_path / "t.csv"}
        config = TableConfig(**places, label="kind", workers=asked, preset=preset, device="cpu")
        assert _table_job(config, Context()).workers == workers


def test_a_refused_run_leaves_its_folder_free(tmp_path: Path) -> None:
    pl.DataFrame({"x": [1.0, 2.0, 3.0, 4.0], "kind": ["a", "a", "a", "b"]}).write_csv(tmp_path / "t.csv")
    (tmp_path / "mine").mkdir()
    for run in ("run", "mine"):
        with pytest.raises(InputError, match="fewer than the 3 folds"):
            stack(TableConfig(run=tmp_path / run, table=tmp_path / "t.csv", label="kind", folds=3, device="cpu"))
    assert not (tmp_path / "run").exists()
    assert list((tmp_path / "mine").iterdir()) == []


def test_the_command_takes_what_a_stranger_has(
    tables: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("showerstack.report.outcome.write_table_report", lambda run, **options: run)
    raw = (tables / "train.tsv").read_text().replace("\t", ";")
    (tmp_path / "t.csv").write_text(raw)
    line = ["stack", "--table", "t.csv", "--separator", ";", "--label", "class", "--columns", "colour,town"]
    line += ["--learners", "table.logistic", "--folds", "2", "--run", "run", "--workers", "1", "--json"]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["cli.py", *line])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert not ended.value.code
    content = json.loads(capsys.readouterr().out)
    assert content["held_out"]["systems"]["table.logistic"]["auc"]["value"] > 0.8
    monkeypatch.setattr("sys.argv", ["cli.py", "leaderboard", "run", "--json"])
    with pytest.raises(SystemExit):
        cli.main()
    assert json.loads(capsys.readouterr().out)[0]["shipped"] == "table.logistic"


HERE = Path("t.csv")


def _plan(**columns: object) -> tuple[Plan, list[str], pl.DataFrame]:
    frame = pl.DataFrame(columns)
    result, remarks = plan(frame, HERE, set())
    return result, remarks, result.encoded(frame, HERE)


def test_gaps_written_as_words_leave_a_number_a_number() -> None:
    result, remarks, encoded = _plan(x=["1.5", " NA", "?", "2", "n/a", None])
    assert result.columns[0].kind == "number"
    np.testing.assert_array_equal(encoded["x"].to_numpy(), [1.5, np.nan, np.nan, 2.0, np.nan, np.nan])
    assert "counts ' NA', '?', 'n/a' as missing numbers" in remarks[0]


def test_text_is_a_category_and_new_levels_are_missing() -> None:
    result, remarks, encoded = _plan(c=["red", "green", "NA", "red"], b=[True, False, None, True])
    assert [column.kind for column in result.columns] == ["category", "number"]
    assert result.columns[0].levels == ("green", "red")
    np.testing.assert_array_equal(encoded["c"].to_numpy(), [1, 0, np.nan, 1])
    np.testing.assert_array_equal(encoded["b"].to_numpy(), [1, 0, np.nan, 1])
    new = pl.Series(["blue", "red"])
    assert result.columns[0].unknown(new) == ["blue"]
    np.testing.assert_array_equal(result.columns[0].encoded(new, HERE), [np.nan, 1])
    assert remarks == []
    assert Plan.from_json(result.as_json()) == result


def test_time_stamps_and_serial_numbers_keep_their_last_digits() -> None:
    stamps = 1_700_000_000 + np.arange(50)
    assert len(np.unique(stamps.astype(np.float32))) < 50
    _, remarks, encoded = _plan(t=stamps)
    np.testing.assert_array_equal(encoded["t"].to_numpy(), np.arange(50))
    assert "taken relative to 1700000000" in remarks[0]
    days = [datetime.date(2026, 1, 1) + datetime.timedelta(days=k) for k in range(5)]
    for values in (days, [str(day) for day in days]):
        kind, _, seconds = _plan(t=values)
        assert kind.columns[0].kind == "time"
        np.testing.assert_allclose(np.diff(seconds["t"].to_numpy()), 86_400)
    _, _, scaled = _plan(x=[1e39, 5e38, 0.0])
    np.testing.assert_allclose(scaled["x"].to_numpy(), [1.0, 0.5, 0.0])


def test_what_cannot_be_learned_from_is_left_out_with_a_remark() -> None:
    names = [f"person {k}" for k in range(300)]
    result, remarks, _ = _plan(unnamed_1=list(range(300)), who=names, empty=[None] * 300, x=np.arange(300.0) ** 2)
    assert result.names == ("x",)
    assert [word in " ".join(remarks) for word in ("counts the rows", "different texts", "is empty")] == [True] * 3


@pytest.mark.parametrize("name", ["Ze", "Az", "", "x y", "p_a", "café", "__label__"])
def test_names_mean_nothing(name: str) -> None:
    assert _plan(**{name: [1.0, 2.0]})[0].names == (name,)


def test_text_where_training_had_numbers_names_row_and_column() -> None:
    result, _, _ = _plan(x=[1.0, 2.0])
    with pytest.raises(InputError, match="row 1, column 'x' holds 'two', expected a number"):
        result.columns[0].encoded(pl.Series(["1", "two"]), HERE)


@pytest.mark.parametrize("name", ["t.csv", "t.tsv", "t.csv.gz", "t.tsv.gz", "t.txt.csv"])
def test_text_tables_of_all_names_read_alike(name: str, tmp_path: Path) -> None:
    between = "\t" if "tsv" in name else ","
    content = between.join(["x", "", "kind"]) + "\n" + between.join(["1", "2", "a"]) + "\n"
    raw = content.encode()
    (tmp_path / name).write_bytes(gzip.compress(raw) if name.endswith("gz") else raw)
    frame = read_table(tmp_path / name)
    assert frame.columns == ["x", "unnamed_2", "kind"]
    assert frame.rows() == [(1, 2, "a")]


def test_a_column_without_a_name_in_a_parquet_file_gets_one(tmp_path: Path) -> None:
    pl.DataFrame({"x": [1], "": [2], "kind": ["a"]}).write_parquet(tmp_path / "t.parquet")
    frame = read_table(tmp_path / "t.parquet")
    assert frame.columns == ["x", "unnamed_2", "kind"]
    assert frame.rows() == [(1, 2, "a")]


def test_another_separator_and_repeated_names(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("x;x;kind\n1;2;a\n")
    assert read_table(tmp_path / "t.csv", separator=";").columns == ["x", "x_duplicated_0", "kind"]
    with pytest.raises(InputError, match="expected one character"):
        read_table(tmp_path / "t.csv", separator=";;")


def test_a_packed_table_that_unpacks_to_more_than_the_memory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("showerstack.stacking.inputs.tables.UNPACKED_SHARE", 1e-9)
    (tmp_path / "t.csv.gz").write_bytes(gzip.compress(b"x,y\n" + b"1,2\n" * 1000))
    with pytest.raises(InputError, match="when unpacked"):
        read_table(tmp_path / "t.csv.gz")


def test_equal_rows_are_noticed() -> None:
    train = pl.DataFrame({"x": [1.0, 1.0, 1.0, 2.0]})
    result = repeated_remarks(train, np.array([0, 0, 1, 1]), pl.DataFrame({"x": [2.0, 3.0]}))
    assert "2 of 4 training rows equal another one, 1 of them with another label" in result[0]
    assert "1 of 2 test rows equal a training row" in result[1]
    assert repeated_remarks(pl.DataFrame({"x": [1.0, 2.0]}), np.array([0, 1]), None) == []


@pytest.mark.parametrize("unit", ["ms", "us", "ns"])
def test_times_and_durations_are_seconds_in_any_unit(unit: str) -> None:
    lasted = pl.Series([datetime.timedelta(seconds=90), None, datetime.timedelta(hours=1)]).cast(pl.Duration(unit))
    _, _, encoded = _plan(t=lasted)
    np.testing.assert_array_equal(encoded["t"].to_numpy(), [90, np.nan, 3600])
    at = pl.Series([datetime.datetime(1970, 1, 1, 0, 1), datetime.datetime(1970, 1, 2)]).cast(pl.Datetime(unit))
    np.testing.assert_array_equal(_plan(t=at)[2]["t"].to_numpy(), [60, 86_400])
    clock = pl.Series([datetime.time(0, 1), datetime.time(12)])
    np.testing.assert_array_equal(_plan(t=clock)[2]["t"].to_numpy(), [60, 43_200])


def test_a_number_is_a_class_by_its_value() -> None:
    assert class_positions(pl.Series([0.0, 1.0, None, 2.0]), ("0", "1")).tolist() == [0, 1, -1, -1]
    assert class_positions(pl.Series(["1.0", "0", "x"]), ("0", "1")).tolist() == [1, 0, -1]
    assert class_positions(pl.Series(["b", "a"]), ("a", "b")).tolist() == [1, 0]
    # where two classes have one value, only the text tells them apart
    assert class_positions(pl.Series(["1", "01", "1.0"]), ("01", "1")).tolist() == [1, 0, -1]


def test_strict_has_no_meaning_for_a_table(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="strict refuses showers"):
        stack(TableConfig(table=tmp_path / "t.csv", label="kind", run=tmp_path / "run"), strict=True)
