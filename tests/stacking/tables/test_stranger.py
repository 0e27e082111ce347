"""A table as strangers bring it, through the whole run: categories, gaps, identifiers, labels in the test table."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import cli
import stacking
from models.registry import LEARNERS
from report.outcome import outcome
from report.public.leaderboard import table_standings
from runtime.errors import InputError
from stacking.predict import predict_table
from stacking.run.config import TableConfig
from stacking.train import stack_table

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


def _config(folder: Path, run: Path, **options: object) -> TableConfig:
    standard = {
        "test_table": folder / "test.tsv", "id": "name", "preset": "quick", "folds": 2, "repeats": 1, "workers": 1,
        "device": "cpu", "fast": False,
        "settings": {name: {"trees": 30} for name in ("table.random_forest", "table.extra_trees")}
        | {f"table.{name}": {"rounds": 60} for name in ("lightgbm", "catboost", "xgboost", "hist_boosting")}
        | {"table.mlp": {"epochs": 6}},
    }  # fmt: skip
    return TableConfig(run=run, table=folder / "train.tsv", label="class", **{**standard, **options})


def test_every_learner_for_tables_uses_categories(tables: Path, tmp_path: Path) -> None:
    result = stack_table(_config(tables, tmp_path / "run", learners=tuple(MADE_FOR_TABLES)))
    assert [row["error"] for row in result.manifest["learners"]] == [None] * len(MADE_FOR_TABLES)
    assert result.manifest["learners"][0]["features"] == ["Ze", "colour", "town", "stamp", "flag"]
    found = outcome(result.run, None, None).content
    for name, metrics in found["test"]["systems"].items():
        # With the number alone the area is .64, without the towns at most .80.
        assert metrics["auc"]["value"] > 0.80, name
    best = min(m["log_loss"]["value"] for m in found["test"]["systems"].values())
    assert found["test"]["systems"][found["shipped"]]["log_loss"]["value"] < best + 0.02
    predicted = pl.read_parquet(result.run / "predictions.parquet")
    assert predicted["name"].to_list() == [f"row {k}" for k in range(500)]
    page = (result.run / "report.html").read_text()
    assert [word in page for word in ("Which columns matter", "town", "Class by class", "Calibration of")] == [True] * 4
    standing = table_standings([result.run])
    assert next(iter(standing.values()))[0].metrics == {
        key: found["test"]["systems"][found["shipped"]][key] for key in ("log_loss", "accuracy", "auc")
    }

    new = strange(50, 3).with_columns(pl.lit("orange").alias("colour"))
    new.write_csv(tmp_path / "new.tsv", separator="\t")
    predictions, frame = predict_table(stacking.load(result.run, trusted=True), tmp_path / "new.tsv")
    assert "'orange', which training rows do not have" in predictions.remarks[0]
    assert frame["name"].to_list() == new["name"].to_list()
    assert np.isfinite(predictions.log_proba).all()


def test_test_labels_do_not_move_predictions(tables: Path, tmp_path: Path) -> None:
    one = stack_table(_config(tables, tmp_path / "a", learners=("table.logistic",)))
    blind = pl.read_csv(tables / "test.tsv", separator="\t").with_columns(pl.lit("no").alias("class"))
    blind.write_csv(tmp_path / "blind.tsv", separator="\t")
    config = _config(tables, tmp_path / "b", learners=("table.logistic",), test_table=tmp_path / "blind.tsv")
    other = stack_table(config)
    np.testing.assert_array_equal(one.predictions.log_proba, other.predictions.log_proba)


def test_one_row_to_predict_loses_no_learner(tables: Path, tmp_path: Path) -> None:
    strange(1, 5).drop("class").write_csv(tmp_path / "one.tsv", separator="\t")
    names = ("table.logistic", "table.extra_trees")
    result = stack_table(_config(tables, tmp_path / "run", learners=names, test_table=tmp_path / "one.tsv"))
    assert [row["status"] for row in result.manifest["learners"]] == ["ok", "ok"]
    assert not any("may have seen" in remark for remark in result.manifest["remarks"])


def test_learners_tuned_for_showers_give_way(tables: Path, tmp_path: Path) -> None:
    config = _config(
        tables, tmp_path / "run", learners=("lightgbm", "pretrained"), settings={"lightgbm": {"rounds": 9}}
    )
    result = stack_table(config)
    assert [row["name"] for row in result.manifest["learners"]] == ["table.lightgbm"]
    told = " ".join(result.manifest["remarks"])
    assert "table.lightgbm takes its place" in told
    assert "pretrained starts from a network of showers" in told
    header = json.loads((result.run / "learners" / "table.lightgbm" / "fold-0" / "learner.json").read_text())
    assert header["settings"]["rounds"] == 9
    with pytest.raises(InputError, match="pretrained can be trained on showers only"):
        stack_table(_config(tables, tmp_path / "none", learners=("pretrained",)))
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


def test_a_refused_run_leaves_its_folder_free(tmp_path: Path) -> None:
    pl.DataFrame({"x": [1.0, 2.0, 3.0, 4.0], "kind": ["a", "a", "a", "b"]}).write_csv(tmp_path / "t.csv")
    (tmp_path / "mine").mkdir()
    for run in ("run", "mine"):
        with pytest.raises(InputError, match="fewer than the 3 folds"):
            stack_table(TableConfig(run=tmp_path / run, table=tmp_path / "t.csv", label="kind", folds=3, device="cpu"))
    assert not (tmp_path / "run").exists()
    assert list((tmp_path / "mine").iterdir()) == []


def test_the_command_takes_what_a_stranger_has(
    tables: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
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
