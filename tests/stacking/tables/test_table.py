"""Tables of any origin, on a problem whose Bayes-optimal answer is known."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import stacking
from runtime.errors import InputError
from scoring.metrics.gamma import area_under_curve
from stacking.meta.softmax import log_loss_per_event
from stacking.predict import predict_table, predict_to_file
from stacking.run.config import TableConfig
from stacking.train import stack_table
from tests.stacking.conftest import CLASSES, bayes_log_proba, gaussians


def _config(run: Path, train: Path, **options: object) -> TableConfig:
    standard = {
        "preset": "quick",
        "folds": 3,
        "workers": 1,
        "device": "cpu",
        "fast": False,
        "learners": ("fake_linear", "fake_useless"),
    }
    return TableConfig(run=run, table=train, label="kind", **{**standard, **options})


@pytest.mark.usefixtures("fakes")
def test_two_gaussians_are_learned_but_not_beaten(two_gaussians: tuple[Path, Path], tmp_path: Path) -> None:
    train, test = two_gaussians
    result = stack_table(_config(tmp_path / "run", train, test_table=test))
    metrics = json.loads((result.run / "metrics_table.json").read_text())
    points, labels = gaussians(1200, 1)
    exact = bayes_log_proba(points)
    stack = (
        pl.read_parquet(result.run / "oof" / "stack.parquet").select(f"logp_{c}" for c in sorted(CLASSES)).to_numpy()
    )
    # Classes are sorted by name: "far" is 0 and "near" is 1 here, the reverse of gaussians().
    loss = log_loss_per_event(stack[:, ::-1], labels)
    excess = loss - log_loss_per_event(exact, labels)
    error = excess.std() / np.sqrt(len(excess))
    assert -2 * error < excess.mean() < 0.01
    area = metrics["systems"]["fake_linear"]["auc"]
    truth, _ = area_under_curve(labels == 1, exact[:, 1])
    assert area["low"] < truth < area["high"]
    assert metrics["systems"]["fake_useless"]["auc"]["value"] == pytest.approx(0.5, abs=0.05)
    assert not result.manifest["gate"]["shipped"], "a useless partner adds nothing to the exact model"

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
    plain = stack_table(_config(tmp_path / "a", train, test_table=test))
    other = stack_table(_config(tmp_path / "b", train, test_table=poisoned))
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
        stack_table(_config(tmp_path / kind, tmp_path / f"{kind}.parquet", **options)) for kind in ("named", "plain")
    )
    accuracy = [result.manifest["learners"][0]["accuracy"] for result in (named, plain)]
    assert accuracy[0] == accuracy[1] < 0.9
    assert named.manifest["learners"][0]["features"] == ["x", "y", name]


@pytest.mark.usefixtures("fakes")
def test_bundle_predicts_new_tables_alike(two_gaussians: tuple[Path, Path], tmp_path: Path) -> None:
    train, test = two_gaussians
    result = stack_table(_config(tmp_path / "run", train, test_table=test))
    bundle = stacking.load(result.run, trusted=True)  # no other process knows the fakes
    predictions, frame = predict_table(bundle, test)
    np.testing.assert_array_equal(predictions.log_proba, result.predictions.log_proba)
    predict_to_file(result.run, test, tmp_path / "new.csv", trusted=True)
    stored = pl.read_csv(tmp_path / "new.csv")
    np.testing.assert_allclose(stored["p_far"].to_numpy(), frame["p_far"].to_numpy(), rtol=1e-12)
    assert stored["config_hash"].unique().to_list() == [result.manifest["config_hash"]]
    with pytest.raises(InputError, match="give it a table"):
        bundle.predict(tmp_path)


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
    result = stack_table(config)
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
    result = stack_table(_config(tmp_path / "run", tmp_path / "spaced.parquet", **options))
    (remark,) = [line for line in result.manifest["remarks"] if "differ" in line]
    assert "labels 'far', 'far ' and 'near', 'near ' differ in spaces or case alone: they are classes" in remark
    result = stack_table(_config(tmp_path / "plain", two_gaussians[0], **options))
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
        stack_table(TableConfig(**options))
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
        stack_table(TableConfig(run=tmp_path / "run", table=tmp_path / name, label="kind", device="cpu"))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("value", [float("inf")])
def test_infinite_values_name_column_and_row(tmp_path: Path, value: float) -> None:
    pl.DataFrame({"x": [0.0, value, 1.0, 2.0], "kind": [0, 1, 0, 1]}).write_parquet(tmp_path / "t.parquet")
    with pytest.raises(InputError, match="row 1, column 'x' is infinite"):
        stack_table(TableConfig(run=tmp_path / "run", table=tmp_path / "t.parquet", label="kind", device="cpu"))


@pytest.mark.usefixtures("fakes")
def test_the_plain_average_ships_where_the_stack_gains_nothing_over_it(
    two_gaussians: tuple[Path, Path], tmp_path: Path
) -> None:
    train, test = two_gaussians
    options = {"test_table": test, "learners": ("fake_noisy", "fake_noisy_twin"), "metas": "average", "prune": 0}
    result = stack_table(_config(tmp_path / "run", train, **options))
    gate = result.manifest["gate"]
    assert (gate["shipped"], gate["best_learner"]) == (False, "average")
    assert "gains 0.00000 ± 0.00000 nats over average: not more than twice its error" in gate["reason"]
    by_name = {row["name"]: row["log_loss"] for row in result.manifest["learners"]}
    assert result.manifest["meta"]["log_losses"]["average"] < min(by_name.values())
    bundle = stacking.load(result.run, trusted=True)
    assert set(bundle.chain.needed) == {"fake_noisy", "fake_noisy_twin"}
    predicted = predict_table(bundle, test)[0].log_proba
    with np.load(result.run / "test" / "average.npz") as stored:
        np.testing.assert_allclose(predicted, stored["log_proba"])
