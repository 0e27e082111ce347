"""Tables of any origin, on a problem whose Bayes-optimal answer is known, and as users bring them.

Columns are what the file declares or the user names, the same in every file; anything else is refused. Labels in the
test table are not read in training.
"""

from __future__ import annotations

import datetime
import gzip
import json
import os
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from showerstack.models.registry import LEARNERS
from showerstack.report.outcome import outcome
from showerstack.report.public.leaderboard import table_standings
from showerstack.report.shared.subject import score_test_table
from showerstack.report.table_page import write_table_report
from showerstack.runtime.context import Context
from showerstack.runtime.errors import InputError
from showerstack.runtime.files import read_json
from showerstack.runtime.tables import column_names, read_table
from showerstack.scoring.metrics.gamma import area_under_curve
from showerstack.stacking.config import TableConfig
from showerstack.stacking.prediction.predict import predict
from showerstack.stacking.prediction.run import load
from showerstack.stacking.remarks import repeated_remarks
from showerstack.stacking.sample import Sample
from showerstack.stacking.tables.columns import Schema, learned_columns
from showerstack.stacking.tables.data import (
    check_identifiers,
    class_positions,
    open_table,
    read_groups,
    read_labels,
    read_weights,
)
from showerstack.stacking.training.schedule import Processes
from showerstack.stacking.training.train import stack
from tests.program import call
from tests.stacking.conftest import CLASSES, bayes_log_proba, gaussians


def _config(run: Path, train: Path, **options: object) -> TableConfig:
    standard = {
        "preset": "quick",
        "folds": 3,
        "repeats": 1,
        "workers": 1,
        "device": "cpu",
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
    sample = Sample(labels, labels)
    excess = sample.losses(oof[:, ::-1]) - sample.losses(exact)
    error = excess.std() / np.sqrt(len(excess))
    assert -5 * error < excess.mean() < 0.03
    area = metrics["systems"]["fake_linear"]["auc"]
    truth, _ = area_under_curve(labels == 1, exact[:, 1])
    assert area["low"] < truth < area["high"]
    assert metrics["systems"]["fake_useless"]["auc"]["value"] == pytest.approx(0.5, abs=0.05)
    assert not result.manifest.gate.claimed, "a useless partner adds nothing to the exact model"

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
    assert "z" in other.manifest.remarks[0]
    assert "kind" not in pl.read_parquet(other.run / "table" / "test.parquet").columns


@pytest.mark.usefixtures("fakes")
@pytest.mark.parametrize("name", ["__label__", "__group__", "label", "event", "row"])
def test_columns_may_have_any_name(name: str, two_gaussians: tuple[Path, Path], tmp_path: Path) -> None:
    frame = pl.read_parquet(two_gaussians[0]).with_row_index("box")
    noise = np.random.default_rng(0).normal(size=frame.height)
    frame.with_columns(pl.Series(name, noise)).write_parquet(tmp_path / "named.parquet")
    frame.with_columns(pl.Series("noise", noise)).write_parquet(tmp_path / "plain.parquet")
    options: dict[str, object] = {"group": "box", "learners": ("fake_linear",), "pools": ("average",)}
    named, plain = (
        stack(_config(tmp_path / kind, tmp_path / f"{kind}.parquet", **options)) for kind in ("named", "plain")
    )
    accuracy = [result.manifest.learners[0].accuracy for result in (named, plain)]
    assert accuracy[0] == accuracy[1] < 0.9
    assert named.manifest.learners[0].features == ["x", "y", name]


@pytest.mark.usefixtures("fakes")
def test_a_run_predicts_new_tables_alike(two_gaussians: tuple[Path, Path], tmp_path: Path) -> None:
    train, test = two_gaussians
    result = stack(_config(tmp_path / "run", train, test_table=test))
    run = load(result.run)
    ctx = Context()  # no other process knows the fakes
    predictions = predict(run, test, ctx).concatenated()
    np.testing.assert_array_equal(predictions.log_proba, result.predictions.log_proba)
    predict(run, test, ctx).write(tmp_path / "new.csv")
    stored = pl.read_csv(tmp_path / "new.csv")
    np.testing.assert_allclose(stored["p_far"].to_numpy(), np.exp(predictions.log_proba)[:, 0], rtol=1e-12)
    assert read_json(tmp_path / "new.csv.json")["config_hash"] == result.manifest.config_hash
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
        learners=("lightgbm", "random_forest"), workers=1, device="cpu", repeats=1,
        settings={"lightgbm": {"rounds": 40}, "random_forest": {"trees": 40}},
    )  # fmt: skip
    result = stack(config)
    metrics = json.loads((result.run / "metrics_table.json").read_text())["systems"]["stack"]
    assert metrics["accuracy"]["value"] > 0.6
    assert metrics["auc"]["low"] > 0.75
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
    (remark,) = [line for line in result.manifest.remarks if "differ" in line]
    assert "labels 'far', 'far ' and 'near', 'near ' differ in spaces or case alone: they are classes" in remark
    result = stack(_config(tmp_path / "plain", two_gaussians[0], **options))
    assert not any("differ" in line for line in result.manifest.remarks)


def test_area_under_curve_and_its_error() -> None:
    areas, errors = [], []
    for seed in range(400):
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
        ({"pools": ("magic",)}, "unknown pool 'magic'"),
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
    train, test = tmp_path / "train.parquet", two_gaussians[1]
    points, labels = gaussians(4000, 1)
    frame = {"x": points[:, 0], "y": points[:, 1], "kind": np.array(CLASSES)[labels]}
    pl.DataFrame(frame).write_parquet(train)
    options = {"test_table": test, "learners": ("fake_noisy", "fake_noisy_twin"), "pools": "average", "prune": 0}
    result = stack(_config(tmp_path / "run", train, **options))
    assert result.manifest.gate.shipped
    assert result.manifest.pool.chosen == "average"
    by_name = {row.name: row.single_fit_log_loss for row in result.manifest.learners}
    assert result.manifest.pool.log_losses["average"] < min(by_name.values())
    run = load(result.run)
    assert set(run.chain.needed) == {"fake_noisy", "fake_noisy_twin"}
    predicted = predict(run, test, Context()).concatenated().log_proba
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
    strange(1000, 1).write_csv(folder / "train.tsv", separator="\t")
    strange(2000, 2).write_csv(folder / "test.tsv", separator="\t")
    return folder


def _strange_config(folder: Path, run: Path, **options: object) -> TableConfig:
    standard = {
        "test_table": folder / "test.tsv", "id": "name", "categories": ("colour", "town", "flag"),
        "preset": "quick", "folds": 2, "repeats": 1, "workers": 1,
        "device": "cpu",
        "settings": {name: {"trees": 30} for name in ("table.random_forest", "table.extra_trees")}
        | {f"table.{name}": {"rounds": 60} for name in ("lightgbm", "catboost", "xgboost", "hist_boosting")}
        | {"table.mlp": {"epochs": 6}},
    }  # fmt: skip
    return TableConfig(run=run, table=folder / "train.tsv", label="class", **{**standard, **options})


@pytest.mark.slow
def test_every_learner_for_tables_uses_categories(tables: Path, tmp_path: Path) -> None:
    result = stack(_strange_config(tables, tmp_path / "run", learners=tuple(MADE_FOR_TABLES)))
    assert [row.error for row in result.manifest.learners] == [None] * len(MADE_FOR_TABLES)
    assert result.manifest.learners[0].features == ["Ze", "colour", "town", "stamp", "flag"]
    content = outcome(result.run).content
    for name, metrics in content["test"]["systems"].items():
        # With the number alone the area is .64, without the towns at most .80.
        assert metrics["auc"]["value"] > 0.80, name
    best = min(m["log_loss"]["value"] for m in content["test"]["systems"].values())
    assert content["test"]["systems"][content["shipped"]]["log_loss"]["value"] < best + 0.03
    predicted = pl.read_parquet(result.run / "predictions.parquet")
    assert predicted["name"].to_list() == [f"row {k}" for k in range(2000)]
    page = (result.run / "report.html").read_text()
    assert [word in page for word in ("Which columns matter", "town", "Class by class", "Calibration of")] == [True] * 4
    standing = table_standings([result.run])
    assert next(iter(standing.values()))[0].metrics == {
        key: content["test"]["systems"][content["shipped"]][key] for key in ("log_loss", "accuracy", "auc")
    }

    new = strange(50, 3).with_columns(pl.lit("orange").alias("colour"))
    new.write_csv(tmp_path / "new.tsv", separator="\t")
    content = predict(load(result.run), tmp_path / "new.tsv", Context())
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
    assert [row.status for row in result.manifest.learners] == ["ok", "ok"]
    assert not any("may have seen" in remark for remark in result.manifest.remarks)


def test_learners_tuned_for_showers_give_way(tables: Path, tmp_path: Path) -> None:
    config = _strange_config(
        tables, tmp_path / "run", learners=("lightgbm", "pretrained"), settings={"lightgbm": {"rounds": 9}}
    )
    result = stack(config)
    assert [row.name for row in result.manifest.learners] == ["table.lightgbm"]
    message = " ".join(result.manifest.remarks)
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


def test_a_tiny_table_starts_no_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("showerstack.stacking.training.schedule.cores", lambda: 7)
    cases = ((300, None, "quick", 1), (300, 3, "quick", 3), (30_000, None, "quick", 7), (300, None, "good", 7))
    for n, asked, preset, workers in cases:
        points, labels = gaussians(n, seed=1)
        pl.DataFrame({"x": points[:, 0], "kind": [CLASSES[k] for k in labels]}).write_csv(tmp_path / "t.csv")
        places = {"run": tmp_path / "run", "table": tmp_path / "t.csv"}
        config = TableConfig(**places, label="kind", workers=asked, preset=preset, device="cpu")
        data = open_table(config, Context(), strict=False)
        data.write()
        assert Processes.of(data.config, data.task, data.train, {}).number == workers


@pytest.mark.usefixtures("fakes")
def test_a_run_does_not_replace_its_own_table(two_gaussians: tuple[Path, Path], tmp_path: Path) -> None:
    train, test = two_gaussians
    inside = tmp_path / "run" / "table" / "train.parquet"
    inside.parent.mkdir(parents=True)
    inside.write_bytes(train.read_bytes())
    (tmp_path / "link").symlink_to(tmp_path / "run")
    for folder in ("run", "link"):
        with pytest.raises(InputError, match=r"holds --table .*, which it may replace"):
            open_table(_config(tmp_path / folder, inside, test_table=test), Context(), strict=False)
    with pytest.raises(InputError, match="holds --test-table"):
        open_table(_config(tmp_path / "run", train, test_table=inside), Context(), strict=False)


def test_a_refused_run_leaves_its_folder_free(tmp_path: Path) -> None:
    pl.DataFrame({"x": [1.0, 2.0, 3.0, 4.0], "kind": ["a", "a", "a", "b"]}).write_csv(tmp_path / "t.csv")
    (tmp_path / "mine").mkdir()
    for run in ("run", "mine"):
        with pytest.raises(InputError, match="fewer than the 3 folds"):
            stack(TableConfig(run=tmp_path / run, table=tmp_path / "t.csv", label="kind", folds=3, device="cpu"))
    assert not (tmp_path / "run").exists()
    assert list((tmp_path / "mine").iterdir()) == []


def test_the_command_takes_what_a_stranger_has(tables: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("showerstack.report.outcome.write_table_report", lambda run, **options: run)
    raw = (tables / "train.tsv").read_text().replace("\t", ";")
    (tmp_path / "t.csv").write_text(raw)
    line = [
        "stack",
        "--table",
        "t.csv",
        "--separator",
        ";",
        "--label",
        "class",
        "--columns",
        "colour,town",
        "--categories",
        "colour,town",
    ]
    line += ["--learners", "table.logistic", "--folds", "2", "--run", "run", "--workers", "1", "--json"]
    monkeypatch.chdir(tmp_path)
    content = json.loads(call("cli.py", *line).stdout)
    assert content["held_out"]["systems"]["table.logistic"]["auc"]["value"] > 0.75
    assert json.loads(call("cli.py", "leaderboard", "run", "--json").stdout)[0]["shipped"] == "table.logistic"


HERE = Path("t.csv")


def _schema(**columns: Any) -> tuple[Schema, list[str], pl.DataFrame]:
    categories, frame = columns.pop("categories", ()), pl.DataFrame(columns)
    learned, remarks = learned_columns(frame, HERE, set(), categories=categories)
    schema = Schema(learned)
    assert Schema.from_json(json.loads(json.dumps(schema.as_json()))) == schema, "what is kept in the run is the same"
    encoded, more = schema.encoded(frame, HERE)
    return schema, [*remarks, *more], encoded


def _encoded(schema: Schema, **columns: Any) -> tuple[list[float], list[str]]:
    frame, remarks = schema.encoded(pl.DataFrame(columns), HERE)
    return frame.to_series().to_list(), remarks


def test_gaps_written_as_words_leave_a_number_a_number() -> None:
    _, remarks, encoded = _schema(x=["1.5", " NA", "?", "2", "n/a", None])
    assert np.isnan(encoded["x"].to_numpy()).tolist() == [False, True, True, False, True, True]
    assert remarks == ["t.csv: column 'x' counts ' NA', '?', 'n/a' as missing numbers"]


@pytest.mark.parametrize(
    ("values", "first"),
    [
        (["1.5", "10,4"], "row 1, column 'x' holds '10,4'"),
        ([1.0] * 9 + ["error"], "row 9, column 'x' holds 'error'"),
        (["TRUE", "FALSE"], "row 0, column 'x' holds 'TRUE'"),
        (["10", "01"], "row 1, column 'x' holds '01'"),
        (["2026-01-01"] * 2, "row 0, column 'x' holds '2026-01-01'"),
        (["0x1F", "1"], "row 0, column 'x' holds '0x1F'"),
    ],
)
def test_what_is_no_number_is_refused_with_row_and_ways_out(values: list[object], first: str) -> None:
    frame = pl.DataFrame({"x": [str(value) for value in values]})
    with pytest.raises(InputError, match=re.escape(f"t.csv: {first}, expected a number")) as caught:
        learned_columns(frame, HERE, set())
    assert all(option in str(caught.value) for option in ("--columns", "--categories", "--id"))
    _, remarks, _ = _schema(x=frame["x"], categories=("x",))
    assert remarks == []


def test_categories_are_text_as_written_and_unknown_ones_are_counted() -> None:
    schema, _, encoded = _schema(c=["01", "02", "NA", "1", ""], categories=("c",))
    assert schema.columns[0].levels == ("01", "02", "1", "NA")
    np.testing.assert_array_equal(encoded["c"].to_numpy(), [0, 1, 3, 2, np.nan])
    # A new file has other rows: the same text has the same code.
    codes, remarks = _encoded(schema, c=["02", "1", "0A", "0B", "0A", None])
    np.testing.assert_array_equal(codes, [1, 2, np.nan, np.nan, np.nan, np.nan])
    assert remarks == [
        "t.csv: column 'c' holds '0A', '0B', which training rows do not have: 3 rows are taken as missing"
    ]


def test_categories_and_truth_values_are_what_a_file_declares() -> None:
    for kind in (pl.Categorical(), pl.Enum(["b", "a"])):
        schema, _, encoded = _schema(c=pl.Series(["b", "a", None], dtype=kind))
        np.testing.assert_array_equal(encoded["c"].to_numpy(), [1, 0, np.nan])
    schema, _, encoded = _schema(b=[True, False, None])
    assert schema.categories == ()
    np.testing.assert_array_equal(encoded["b"].to_numpy(), [1, 0, np.nan])
    assert _encoded(schema, b=["TRUE", "false"])[0] == [1, 0]
    with pytest.raises(InputError, match="row 0, column 'b' holds 'yes', expected true or false"):
        _encoded(schema, b=["yes"])
    with pytest.raises(InputError, match="column 'b' holds Int64, in training it was a boolean"):
        _encoded(schema, b=[1])


@pytest.mark.parametrize(
    ("train", "new", "message"),
    [
        ([1.0, 2.0], ["1", "two"], "row 1, column 'x' holds 'two', expected a number, as in training"),
        ([1.0, 2.0], [True, False], "holds Boolean, in training it was a number"),
        ([datetime.date(2026, 1, 1)], [1.0], "holds Float64, in training it was a time"),
    ],
)
def test_a_column_keeps_its_meaning(train: list[object], new: list[object], message: str) -> None:
    schema, _, _ = _schema(x=train)
    with pytest.raises(InputError, match=message):
        _encoded(schema, x=new)


def test_numbers_of_a_category_are_no_text_in_the_next_file() -> None:
    schema, _, _ = _schema(c=["1", "2"], categories=("c",))
    with pytest.raises(InputError, match="holds Int64, in training it was a category"):
        _encoded(schema, c=[1, 2])
    whole, _, _ = _schema(c=[1, 2], categories=("c",))
    assert _encoded(whole, c=[1.0, 2.0])[0] == [0, 1]


def test_numbers_are_centred_and_scaled_before_they_become_float32() -> None:
    x = np.random.default_rng(0).normal(size=200)
    same = _schema(x=x)[2]["x"].to_numpy()
    for factor in (1e-47, 1e300):
        np.testing.assert_allclose(_schema(x=factor * x)[2]["x"].to_numpy(), same, rtol=1e-5, atol=1e-6)
    stamps = 1_700_000_000 + np.arange(50) % 49
    for first in (0, 1_700_000_000):
        stamps[0] = first
        assert len(np.unique(_schema(t=stamps)[2]["t"].to_numpy()[1:])) == 49
    # Neighbours that float64 does not tell apart.
    _, _, encoded = _schema(n=2**60 + np.array([1, 2, 5]), text=[str(2**60 + k) for k in (1, 2, 5)])
    assert np.diff(encoded.to_numpy(), axis=0).tolist() == [[1, 1], [3, 3]]


@pytest.mark.parametrize("share", [0.02, 0.6])
def test_values_beyond_the_spread_are_missing_and_counted(share: float) -> None:
    x = np.random.default_rng(0).normal(size=500)
    spoiled = np.where(np.arange(500) < share * 500, -1e99, x)
    schema, remarks, encoded = _schema(x=spoiled)
    n = int(share * 500)
    assert remarks == [f"t.csv: column 'x' has {n} values beyond 1e30 times its spread: they are taken as missing"]
    assert np.isnan(encoded["x"].to_numpy()).sum() == n
    assert len(np.unique(encoded["x"].to_numpy()[n:])) == 500 - n
    assert _encoded(schema, x=[0.0, 1e99])[1] == [
        "t.csv: column 'x' has 1 values beyond 1e30 times its spread: they are taken as missing"
    ]


def test_times_that_a_file_declares_are_seconds() -> None:
    days = [datetime.date(2026, 1, 1) + datetime.timedelta(days=k) for k in (0, 1, 3)]
    schema, _, encoded = _schema(t=days)
    assert (schema.columns[0].kind, schema.columns[0].scale) == ("time", 86_400)
    np.testing.assert_array_equal(encoded["t"].to_numpy(), [-1, 0, 2])
    for unit in ("ms", "us", "ns"):
        for kind in (pl.Duration(unit), pl.Datetime(unit)):
            second = pl.Series([0, 90, 3600]).cast(pl.Int64) * {"ms": 10**3, "us": 10**6, "ns": 10**9}[unit]
            assert _schema(t=second.cast(kind))[0].columns[0].scale == 90
    clock = pl.Series([datetime.time(0, 1), datetime.time(0, 2), datetime.time(12)])
    assert _schema(t=clock)[0].columns[0].offset == 120


def test_a_time_without_a_zone_is_none_with_one() -> None:
    times = pl.Series([datetime.datetime(2026, 1, 1, hour) for hour in (0, 1, 3)])
    naive, aware = _schema(t=times)[0], _schema(t=times.dt.replace_time_zone("UTC"))[0]
    elsewhere = times.dt.replace_time_zone("UTC").dt.convert_time_zone("Europe/Berlin")
    np.testing.assert_array_equal(_encoded(aware, t=elsewhere)[0], _encoded(naive, t=times)[0])
    with pytest.raises(InputError, match=r"in training it was a time$"):
        _encoded(naive, t=elsewhere)
    with pytest.raises(InputError, match="in training it was a time with a zone"):
        _encoded(aware, t=times)


@pytest.mark.parametrize(
    "values",
    [pl.Series([[1], [2]]), pl.Series([{"a": 1}, {"a": 2}]), pl.Series([b"a", b"\xff"])],
    ids=["list", "struct", "bytes"],
)
def test_what_is_no_value_names_no_row(values: pl.Series) -> None:
    frame = pl.DataFrame({"v": values})
    expected = r"t\.csv: column 'v' holds \w+.*, expected text or numbers \("
    for read in (read_labels, read_groups):
        with pytest.raises(InputError, match=expected):
            read(frame, HERE, "v")
    if values.dtype.is_nested():
        with pytest.raises(InputError, match=expected + "identifier"):
            check_identifiers(frame, HERE, ("v",), ("a", "b"))


@pytest.mark.parametrize(
    "values", [[True, True], [datetime.date(2026, 1, 1)] * 2, pl.Series(["1", "2"], dtype=pl.Categorical)]
)
def test_weights_are_numbers(values: Any) -> None:
    with pytest.raises(InputError, match=r"column 'w' holds .* expected weights"):
        read_weights(pl.DataFrame({"w": values}), HERE, "w")


def test_whole_numbers_that_are_all_different_are_refused_where_they_are_dense() -> None:
    rng = np.random.default_rng(0)
    gap = pl.Series([None, *range(199)])
    with pytest.raises(InputError, match="column 'n' numbers the rows"):
        _schema(n=gap, x=rng.normal(size=200))
    _, remarks, _ = _schema(n=rng.permutation(200) * 7 + 3, x=rng.normal(size=200), k=rng.integers(0, 150, 200))
    assert remarks == [
        "t.csv: column 'n' holds whole numbers that are all different: set it apart (--id) if it names rows"
    ]


@pytest.mark.parametrize("name", ["unnamed_1", "Unnamed: 0", "__index_level_0__", "index", "x"])
def test_row_numbers_are_refused_unless_they_are_named(name: str) -> None:
    rng = np.random.default_rng(0)
    # Two thirds of the rows, shuffled: what is left of a split that kept the index.
    frame = pl.DataFrame({name: rng.permutation(300)[:200].astype(float), "kept": rng.integers(0, 9, 200)})
    with pytest.raises(InputError, match=f"column '{name}' numbers the rows"):
        learned_columns(frame, HERE, set())
    learned, _ = learned_columns(frame, HERE, {name})
    assert [column.name for column in learned] == ["kept"]
    learned, _ = learned_columns(frame, HERE, set(), wanted=(name, "kept"))
    assert [column.name for column in learned] == [name, "kept"]


def test_columns_without_a_value_are_left_out_and_others_than_values_refused() -> None:
    schema, remarks, _ = _schema(empty=[None] * 3, x=[1.0, 2.0, 4.0])
    assert (schema.names, remarks) == (("x",), ["t.csv: column 'empty' is empty: it is ignored"])
    with pytest.raises(InputError, match=r"column 'x' holds List\(Int64\), no numbers"):
        _schema(x=[[1], [2]])


@pytest.mark.parametrize("name", ["Ze", "Az", "", "x y", "p_a", "café", "__label__"])
def test_names_mean_nothing(name: str) -> None:
    assert _schema(**{name: [1.0, 2.0]})[0].names == (name,)


@pytest.mark.parametrize("name", ["t.csv", "t.tsv", "t.csv.gz", "t.tsv.gz", "t.txt.csv"])
def test_text_tables_of_all_names_read_alike(name: str, tmp_path: Path) -> None:
    between = "\t" if "tsv" in name else ","
    content = between.join(["x", "", "kind"]) + "\n" + between.join(["1", "2", "a"]) + "\n"
    raw = content.encode()
    (tmp_path / name).write_bytes(gzip.compress(raw) if name.endswith("gz") else raw)
    frame = read_table(tmp_path / name)
    assert frame.columns == ["x", "unnamed_2", "kind"]
    assert frame.rows() == [("1", "2", "a")]


def test_a_column_without_a_name_in_a_parquet_file_gets_one(tmp_path: Path) -> None:
    pl.DataFrame({"x": [1], "": [2], "kind": ["a"]}).write_parquet(tmp_path / "t.parquet")
    frame = read_table(tmp_path / "t.parquet")
    assert frame.columns == ["x", "unnamed_2", "kind"]
    assert frame.rows() == [(1, 2, "a")]


def test_another_separator_repeated_names_and_other_encodings(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("x;y;;\n1;2;;\n")
    assert read_table(tmp_path / "t.csv", separator=";").columns == ["x", "y", "unnamed_3", "unnamed_4"]
    with pytest.raises(InputError, match="expected one character"):
        read_table(tmp_path / "t.csv", separator=";;")
    (tmp_path / "t.csv").write_text("kind,x,kind\na,1,a\n")
    for read in (read_table, column_names):
        with pytest.raises(InputError, match=r"t\.csv has 2 columns 'kind': rename them"):
            read(tmp_path / "t.csv")
    for encoding in ("latin-1", "utf-16"):
        (tmp_path / "t.csv").write_text("x,kind\n1,é\n", encoding=encoding)
        with pytest.raises(InputError, match=r"t\.csv is not text in UTF-8: save it as that"):
            read_table(tmp_path / "t.csv")


def test_a_packed_table_that_unpacks_to_more_than_the_memory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("showerstack.runtime.tables.UNPACKED_SHARE", 1e-9)
    (tmp_path / "t.csv.gz").write_bytes(gzip.compress(b"x,y\n" + b"1,2\n" * 1000))
    with pytest.raises(InputError, match="when unpacked"):
        read_table(tmp_path / "t.csv.gz")


def test_equal_rows_are_noticed() -> None:
    train = pl.DataFrame({"x": [1.0, 1.0, 1.0, 2.0]})
    result = repeated_remarks(train, np.array([0, 0, 1, 1]), pl.DataFrame({"x": [2.0, 3.0]}))
    assert "2 of 4 training rows equal another one, 1 of them with another label" in result[0]
    assert "1 of 2 test rows equal a training row" in result[1]
    assert repeated_remarks(pl.DataFrame({"x": [1.0, 2.0]}), np.array([0, 1]), None) == []


def test_labels_are_text_as_written() -> None:
    frame = pl.DataFrame({"v": ["3.10", "3.9", "3.1", "3.10"], "w": ["NA", "b", "00017", "17"], "n": [2, 10, 2, 2]})
    labels, classes, kind = read_labels(frame, HERE, "v")
    assert (classes, kind) == (("3.1", "3.10", "3.9"), "str")
    assert labels.tolist() == [1, 2, 0, 1]
    assert read_labels(frame, HERE, "w")[1] == ("00017", "17", "NA", "b")
    assert read_labels(frame, HERE, "n")[1:] == (("2", "10"), "int"), "in the order of their values"
    large = pl.DataFrame({"n": [2**60, 2**60 + 1]})
    assert read_labels(large, HERE, "n")[1] == (str(2**60), str(2**60 + 1))


def test_a_label_is_a_class_by_its_text() -> None:
    assert class_positions(pl.Series([0.0, 1.0, None, 2.0]), ("0", "1")).tolist() == [0, 1, -1, -1]
    assert class_positions(pl.Series(["1.0", "0", "x"]), ("0", "1")).tolist() == [-1, 0, -1]
    assert class_positions(pl.Series([True, False]), ("False", "True")).tolist() == [1, 0]
    assert class_positions(pl.Series(["1", "01", "1.0"]), ("01", "1")).tolist() == [1, 0, -1]


@pytest.mark.usefixtures("fakes")
def test_identifiers_are_text_as_written_and_labels_of_no_class_are_an_error(
    two_gaussians: tuple[Path, Path], tmp_path: Path
) -> None:
    train, test = two_gaussians
    tag = [f"{k % 10}E{k // 10:02d}" for k in range(800)]
    pl.read_parquet(test).with_columns(tag=pl.Series(tag), kind=pl.lit("Near")).write_csv(tmp_path / "test.csv")
    pl.read_parquet(train).with_columns(tag=pl.lit("0")).write_parquet(tmp_path / "train.parquet")
    options = {"test_table": tmp_path / "test.csv", "id": "tag", "learners": ("fake_linear",)}
    result = stack(_config(tmp_path / "run", tmp_path / "train.parquet", **options))
    assert pl.read_parquet(result.run / "predictions.parquet")["tag"].to_list() == tag
    with pytest.raises(InputError, match="no label of column 'kind' is a class of the training: 'Near' here, 'far', "):
        score_test_table(load(result.run))


@pytest.mark.usefixtures("fakes")
def test_weights_of_the_test_table_count(two_gaussians: tuple[Path, Path], tmp_path: Path) -> None:
    train, test = (pl.read_parquet(file) for file in two_gaussians)
    test = test.with_columns(kind=pl.Series(np.array(CLASSES)[gaussians(800, 2)[1]]))
    heavy = pl.when(pl.col("kind") == "near").then(3.0).otherwise(1.0).alias("w")
    train.with_columns(heavy).write_parquet(tmp_path / "train.parquet")
    test.with_columns(heavy).write_parquet(tmp_path / "test.parquet")
    options = {"test_table": tmp_path / "test.parquet", "weight": "w", "learners": ("fake_linear",)}
    run = load(stack(_config(tmp_path / "run", tmp_path / "train.parquet", **options)).run)
    scored = score_test_table(run)
    assert scored is not None
    right = (pl.read_parquet(run.folder / "predictions.parquet")["predicted"] == test["kind"]).to_numpy()
    weights = np.where(test["kind"] == "near", 3.0, 1.0)
    assert scored["systems"][run.shipped]["accuracy"]["value"] == pytest.approx(np.average(right, weights=weights))
    gaps = test.with_columns(w=pl.when(pl.int_range(pl.len()) > 3).then(1.0))
    gaps.write_parquet(tmp_path / "test.parquet")
    with pytest.raises(InputError, match=r"test\.parquet: row 0, column 'w'"):
        stack(_config(tmp_path / "gaps", tmp_path / "train.parquet", **options))
    assert not (tmp_path / "gaps" / "learners").exists()
    test.write_parquet(tmp_path / "test.parquet")
    options = options | {"test_table": tmp_path / "test.parquet"}
    scored = score_test_table(load(stack(_config(tmp_path / "alike", tmp_path / "train.parquet", **options)).run))
    assert scored is not None
    assert "has no column 'w': its rows count alike" in scored["remarks"][0]


@pytest.mark.usefixtures("fakes")
def test_errors_of_a_table_count_its_groups(two_gaussians: tuple[Path, Path], tmp_path: Path) -> None:
    """Every row eight times: with groups the intervals are those of the rows, without they are 2.8 times too narrow."""
    train, test = (pl.read_parquet(file) for file in two_gaussians)
    test = test.with_columns(kind=pl.Series(np.array(CLASSES)[gaussians(800, 2)[1]]))
    for name, frame in (("train", train), ("test", test)):
        copied = frame.with_row_index("box").select(pl.all().repeat_by(8).explode())
        copied.write_parquet(tmp_path / f"{name}8.parquet")
    options = {"test_table": tmp_path / "test8.parquet", "learners": ("fake_linear",), "group": "box"}
    run = load(stack(_config(tmp_path / "run", tmp_path / "train8.parquet", **options)).run)
    single = {"test_table": tmp_path / "one.parquet", "learners": ("fake_linear",)}
    test.write_parquet(tmp_path / "one.parquet")
    plain = load(stack(_config(tmp_path / "plain", two_gaussians[0], **single)).run)
    scored, alone = score_test_table(run), score_test_table(plain)
    assert scored is not None
    assert alone is not None
    assert scored["counted"] == "groups of rows, 800 of them"
    shared = "800 of 800 groups in column 'box' are in the training table too, such as '0'"
    assert any(shared in line for line in run.manifest.remarks)
    new = pl.read_parquet(tmp_path / "test8.parquet").with_columns(pl.col("box") + 10**6)
    new.write_parquet(tmp_path / "new8.parquet")
    options = options | {"test_table": tmp_path / "new8.parquet"}
    again = load(stack(_config(tmp_path / "new", tmp_path / "train8.parquet", **options)).run)
    assert not any("groups in column" in line for line in again.manifest.remarks)
    for name in ("accuracy", "log_loss", "auc"):
        ours, theirs = (one["systems"]["fake_linear"][name] for one in (scored, alone))
        assert ours["high"] - ours["low"] == pytest.approx(theirs["high"] - theirs["low"], rel=0.05)
    held_out = read_json(run.folder / "metrics_table.json")
    assert held_out["counted"].startswith("groups of rows, ")
    assert "intervals from the number of groups of rows, 800 of them" in write_table_report(run.folder).read_text()


def test_a_test_table_of_one_class_is_scored(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(600, 2))
    frame = pl.DataFrame({"a": x[:, 0], "b": x[:, 1], "kind": np.where(x[:, 0] > 0.3 * x[:, 1], "photon", "hadron")})
    frame[:400].write_csv(tmp_path / "train.csv")
    frame[400:].filter(kind="photon").write_csv(tmp_path / "photons.csv")
    options = {"test_table": tmp_path / "photons.csv", "learners": ("table.logistic",)}
    run = stack(_config(tmp_path / "run", tmp_path / "train.csv", **options)).run
    shown = outcome(run, None)
    scored = shown.content["test"]["systems"]["table.logistic"]
    assert scored["auc"] is None
    assert scored["accuracy"]["value"] > 0.9
    assert {one["type"] for one in _model_index(run)} == {"log_loss", "accuracy"}
    assert table_standings([run])


def _model_index(run: Path) -> list[dict[str, Any]]:
    line = next(line for line in (run / "model_card.md").read_text().splitlines() if line.startswith("model-index"))
    metrics: list[dict[str, Any]] = json.loads(line.partition(": ")[2])[0]["results"][0]["metrics"]
    return metrics


@pytest.mark.parametrize("name", ["row", "predicted", "p_a"])
def test_identifiers_named_like_columns_of_the_predictions_are_refused(name: str) -> None:
    frame = pl.DataFrame({name: [7, 9]})
    with pytest.raises(InputError, match=f"have a column '{name}' of their own: rename the identifier"):
        check_identifiers(frame, HERE, (name,), ("a", "b"))
    check_identifiers(frame.rename({name: "mine"}), HERE, ("mine",), ("a", "b"))


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_blank_line_is_no_row(end: str, tmp_path: Path) -> None:
    lines = ["", "a,b", "1,2", "", '"x', "", 'y",4', "  ", ",", "", ""]
    (tmp_path / "t.csv").write_bytes(b"\xef\xbb\xbf" + end.join(lines).encode())
    middle = f"x{end}{end}y"
    assert read_table(tmp_path / "t.csv").rows() == [("1", "2"), (middle, "4"), (None, None)]
    assert column_names(tmp_path / "t.csv") == ["a", "b"]


@pytest.mark.parametrize(("row", "n"), [("3", 1), ("3,4,5", 3)])
def test_a_row_of_other_length_is_refused_with_its_line(row: str, n: int, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(f"a,b\n1,2\n\n{row}\n5,6\n")
    with pytest.raises(InputError, match=rf"t\.csv: line 4 has {n} fields, the header 2"):
        read_table(tmp_path / "t.csv")


def test_standard_error_stays_where_it_was_in_threads(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,b\n1,2\n" * 200)
    before = os.fstat(2)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: read_table(tmp_path / "t.csv"), range(40)))
    assert os.path.samestat(os.fstat(2), before)


def test_strict_has_no_meaning_for_a_table(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="strict refuses showers"):
        stack(TableConfig(table=tmp_path / "t.csv", label="kind", run=tmp_path / "run"), strict=True)
