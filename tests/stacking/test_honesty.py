"""The rules that make the numbers believable, each with a test that fails when the rule is broken."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from showerstack import models, stacking
from showerstack.features.build import build_table
from showerstack.models.base.posterior import log_softmax
from showerstack.runtime.context import Context
from showerstack.runtime.errors import InputError
from showerstack.showers.schema import COMPOSITION, GAMMA, Task
from showerstack.stacking.config import StackConfig, TableConfig
from showerstack.stacking.events import ShowerEvents
from showerstack.stacking.prediction.predict import predict
from showerstack.stacking.prediction.run import load
from showerstack.stacking.sample import Sample
from showerstack.stacking.second_level import Gate, calibrated, decide_gate, entropy, fit_stack, leak_remarks
from showerstack.stacking.training.train import stack
from tests.stacking.conftest import gaussians
from tests.stacking.fakes import Leaking

_opened: list[str] | None = None


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    if _opened is not None and event == "open" and isinstance(arguments[0], str | bytes | Path):
        _opened.append(str(arguments[0]))


sys.addaudithook(_watch)


@pytest.fixture
def opened() -> Any:
    """List every file that Python opens during the test."""
    global _opened
    _opened = []
    yield _opened
    _opened = None


def _copy(data: Path, task: Task, to: Path) -> Path:
    for split in ("train", "test"):
        source = data / f"{task.name}_{split}"
        table = build_table(source, ctx=Context(device="cpu", workers=1)).folder
        shutil.copytree(source, to / source.name)
        shutil.copytree(table, to / table.name)
    return to


@pytest.mark.slow
@pytest.mark.usefixtures("fakes")
@pytest.mark.parametrize(("task", "damage"), [(COMPOSITION, "poisoned"), (GAMMA, "absent")])
def test_test_labels_are_never_opened_and_change_nothing(
    task: Task, damage: str, request: pytest.FixtureRequest, tmp_path: Path, opened: list[str]
) -> None:
    data = _copy(request.getfixturevalue(f"tiny_{task.name}"), task, tmp_path / "data")
    options: dict[str, Any] = {"task": task.name, "data": data, "preset": "quick", "folds": 3, "workers": 1}
    options |= {"device": "cpu", "learners": ("fake_linear", "fake_useless"), "pools": ("log_pool",)}
    opened.clear()
    stack(StackConfig(run=tmp_path / "clean", **options))
    labels = data / f"{task.name}_test" / str(task.label_file)
    assert any(Path(name).name == task.label_file for name in opened), "the watch sees training labels being read"
    assert str(labels) not in opened

    labels.unlink()
    if damage == "poisoned":
        labels.write_bytes(b"poison: whoever reads this fails")
    stack(StackConfig(run=tmp_path / damage, **options))
    expected = (tmp_path / "clean" / "predictions.npz").read_bytes()
    assert (tmp_path / damage / "predictions.npz").read_bytes() == expected


def test_events_to_be_predicted_refuse_to_give_labels(tiny_composition: Path) -> None:
    events = ShowerEvents(tiny_composition / "composition_test", tiny_composition / "table", COMPOSITION)
    with pytest.raises(InputError, match="labels are not read here"):
        events.known()


def test_no_source_of_stacking_or_models_names_a_label_file_or_the_scorer() -> None:
    forbidden = re.compile(r"label_file|labels_(composition|gamma|energy)|scoring\.score|truth\.parquet|TRUTH_FILE")
    sources = [file for room in (stacking, models) for file in Path(room.__file__).parent.rglob("*.py")]
    assert len(sources) > 20
    assert [file.name for file in sources if forbidden.search(file.read_text())] == []


def test_shuffled_labels_give_chance_level_and_no_claim(tmp_path: Path) -> None:
    points, labels = gaussians(1500, 3)
    shuffled = np.random.default_rng(0).permutation(labels)
    pl.DataFrame({"x": points[:, 0], "y": points[:, 1], "kind": shuffled}).write_parquet(tmp_path / "t.parquet")
    learners = {"lightgbm": {"rounds": 40}, "random_forest": {"trees": 30}}
    result = stack(
        TableConfig(repeats=1, holdout=0.1,
            run=tmp_path / "run", table=tmp_path / "t.parquet", label="kind", preset="quick", folds=3, workers=1,
            device="cpu", learners=tuple(learners), settings=learners,
        )
    )  # fmt: skip
    assert not result.manifest.gate.claimed
    prior = np.bincount(shuffled) / len(shuffled)
    chance = -(prior * np.log(prior)).sum()
    pool = result.manifest.pool
    assert pool.log_losses[pool.chosen] == pytest.approx(chance, abs=0.02)


@pytest.mark.usefixtures("fakes")
def test_a_stack_that_is_better_ships_and_predicts_new_rows(tmp_path: Path) -> None:
    # Each learner knows one of two independent columns, one is too sure: only a weighted sum is the exact posterior.
    distance = 1.5
    for name, n, seed in (("train", 3000, 1), ("test", 6000, 2)):
        labels = np.random.default_rng(seed).integers(0, 2, n)
        points = np.random.default_rng(seed + 10).normal(size=(n, 2)) + distance * (labels[:, None] - 0.5)
        frame = pl.DataFrame({"x": points[:, 0], "y": points[:, 1], "kind": np.array(["near", "far"])[labels]})
        frame.write_parquet(tmp_path / f"{name}.parquet")
    options: dict[str, Any] = {"preset": "quick", "folds": 3, "workers": 1, "device": "cpu", "holdout": 0.2}
    options |= {"learners": ("fake_along", "fake_across"), "pools": ("log_pool", "average"), "prune": 0.0}
    result = stack(
        TableConfig(
            run=tmp_path / "run", table=tmp_path / "train.parquet", label="kind",
            test_table=tmp_path / "test.parquet", repeats=1, **options,
        )
    )  # fmt: skip
    gate = result.manifest.gate
    assert gate.shipped
    assert result.manifest.shipped == "stack"
    assert gate.gain > 2 * gate.standard_error
    assert result.predictions is not None
    frame = pl.read_parquet(tmp_path / "test.parquet")
    logit = distance * (frame["x"].to_numpy() + frame["y"].to_numpy())
    exact = {"near": 1 / (1 + np.exp(logit)), "far": 1 / (1 + np.exp(-logit))}
    run = load(result.run)
    again = predict(run, tmp_path / "test.parquet", Context()).concatenated().log_proba
    assert np.array_equal(again, result.predictions.log_proba)
    for k, name in enumerate(run.task.classes):
        assert np.abs(np.exp(again[:, k]) - exact[name]).mean() < 0.03
    labels = np.array([run.task.classes.index(name) for name in frame["kind"]])
    losses = {
        system.name: -system.log_proba[np.arange(len(labels)), labels] for system in run.test_systems(len(labels))
    }
    for name in ("fake_along", "fake_across", "average"):
        worse = losses[name] - losses["stack"]
        assert worse.mean() > 3 * worse.std() / np.sqrt(len(worse)), name


@pytest.mark.usefixtures("fakes")
def test_a_learner_that_memorises_gets_no_say(two_gaussians: tuple[Path, Path], tmp_path: Path) -> None:
    train, test = two_gaussians
    # Every row twice, as showers reused at several cores: only folds that keep twins together are honest.
    frame = pl.read_parquet(train).with_row_index("shower")
    doubled = tmp_path / "doubled.parquet"
    pl.concat([frame, frame]).write_parquet(doubled)
    options: dict[str, Any] = {"table": doubled, "label": "kind", "test_table": test, "preset": "quick", "folds": 3}
    options |= {"workers": 1, "device": "cpu", "learners": ("fake_linear", "fake_memorising"), "pools": ("log_pool",)}
    honest = stack(TableConfig(repeats=1, holdout=0.1, run=tmp_path / "honest", group="shower", **options))
    rows = {row.name: row for row in honest.manifest.learners}
    assert rows["fake_memorising"].log_loss == pytest.approx(np.log(2), abs=0.01)
    assert set(honest.manifest.pool.weights) == {"fake_linear"}
    assert not honest.manifest.gate.claimed

    # Without the groups its twins betray the labels; the leak test sees that it is surer than on new rows, and says so.
    frame_only = tmp_path / "no_index.parquet"
    pl.concat([frame, frame]).drop("shower").write_parquet(frame_only)
    caught = stack(TableConfig(repeats=1, holdout=0.1, run=tmp_path / "leak", **{**options, "table": frame_only}))
    (remark,) = [text for text in caught.manifest.remarks if "seen their labels" in text]
    assert remark.startswith("fake_memorising is more certain")


@pytest.mark.usefixtures("fakes")
def test_a_learner_that_remembers_other_folds_is_caught(two_gaussians: tuple[Path, Path], tmp_path: Path) -> None:
    train, test = two_gaussians
    Leaking.seen.clear()
    result = stack(
        TableConfig(repeats=1, holdout=0.1,
            run=tmp_path / "run", table=train, label="kind", test_table=test, preset="quick", folds=3, workers=1,
            device="cpu", learners=("fake_leaking", "fake_linear"), race="off",
        )
    )  # fmt: skip
    (remark,) = [text for text in result.manifest.remarks if "seen their labels" in text]
    assert remark.startswith("fake_leaking is more certain")
    assert {row.status for row in result.manifest.learners} == {"ok"}, "new events do not choose learners"


def _of(labels: np.ndarray) -> Sample:
    return Sample(labels, np.zeros(len(labels), int))


def _noisy(labels: np.ndarray, strength: float, seed: int, n_classes: int = 2) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return log_softmax(
        strength * (np.eye(n_classes)[labels] - 1 / n_classes) + rng.normal(size=(len(labels), n_classes))
    )


def test_a_real_gain_is_claimed_and_a_loss_does_not_ship() -> None:
    labels = np.random.default_rng(0).integers(0, 2, 4000)
    a, b = _noisy(labels, 1.0, 1), _noisy(labels, 1.0, 2)
    learners = {"a": a, "b": b}
    better = decide_gate(log_softmax(a + b), learners, _of(labels))
    assert (better.shipped, better.claimed) == (True, True)
    assert better.gain > 5 * better.standard_error
    best = learners[better.best_learner]
    nothing = decide_gate(best + np.resize([0.01, -0.01], (4000, 1)), learners, _of(labels))
    assert (nothing.shipped, nothing.claimed) == (True, False), "what gains nothing ships, and claims nothing"
    assert "is not shown" in nothing.reason
    worse = decide_gate(log_softmax(best + 0.5 * _noisy(labels, 0.0, 3)), learners, _of(labels))
    assert (worse.shipped, worse.claimed) == (False, False)
    assert worse.reason.endswith(f" higher than that of {better.best_learner}")
    assert not decide_gate(a, {"a": a}, _of(labels)).shipped, "one learner is no stack"


def test_a_gain_is_claimed_from_two_errors_on_and_a_loss_ships_up_to_one() -> None:
    labels, base = np.zeros(400, dtype=int), np.full((400, 2), np.log(0.5))
    spread = np.resize([0.1, -0.1], 400)

    def gate(gain_in_errors: float) -> Gate:
        changed = base.copy()
        changed[:, 0] += spread + gain_in_errors * 0.1 / np.sqrt(399)
        return decide_gate(changed, {"a": base, "b": base - [0.1, 0.0]}, _of(labels))

    assert gate(1.5).gain / gate(1.5).standard_error == pytest.approx(1.5, rel=2e-3)
    assert [(gate(x).shipped, gate(x).claimed) for x in (-1.01, -0.99, 1.99, 2.01)] == [
        (False, False), (True, False), (True, False), (True, True),
    ]  # fmt: skip
    # Worse than every learner it does not ship, whatever the error.
    alike = decide_gate(base + spread[:, None] * [1, 0] - [1e-3, 0.0], {"a": base, "b": base}, _of(labels))
    assert -alike.standard_error < alike.gain < 0
    assert not alike.shipped
    assert decide_gate(base, {"a": base, "b": base}, _of(labels)).reason == (
        "the log-losses of the stack and of a differ by less than 0.00001"
    )


def test_groups_widen_the_gates_error() -> None:
    labels = np.repeat(np.random.default_rng(0).integers(0, 2, 500), 4)
    a = np.repeat(_noisy(labels[::4], 1.0, 1), 4, axis=0)
    b = np.repeat(_noisy(labels[::4], 1.0, 2), 4, axis=0)
    plain = decide_gate(b, {"a": a, "c": a}, _of(labels))
    grouped = decide_gate(b, {"a": a, "c": a}, Sample(labels, labels, np.repeat(np.arange(500), 4)))
    assert grouped.standard_error == pytest.approx(2 * plain.standard_error, rel=2e-3)


def test_gamma_gate_has_a_veto_where_survival_gets_worse() -> None:
    rng = np.random.default_rng(0)
    labels = (rng.random(20_000) > 0.1).astype(int)
    exact = 2.0 * (rng.normal(size=20_000) + 2.0 * labels - 1.0) + np.log(9.0)
    # The base is much too timid, the other is sure of itself: a better log-loss. But the other mixes the events
    # that are most like gammas with hadrons.
    timid, ruined = 0.2 * exact, exact.copy()
    base = np.column_stack([-np.logaddexp(0, timid), -np.logaddexp(0, -timid)])
    purest = np.argsort(exact)[:2500]
    ruined[purest] = rng.permutation(ruined[purest])
    worse = np.column_stack([-np.logaddexp(0, ruined), -np.logaddexp(0, -ruined)])
    gate = decide_gate(worse, {"a": base, "b": base}, _of(labels), survival=True)
    assert gate.gain > gate.standard_error
    assert not gate.shipped
    assert gate.reason.startswith("ln survival of the stack is ")
    # Where survival is no worse than before, or nobody asks for it, the better log-loss ships.
    better = np.column_stack([-np.logaddexp(0, exact), -np.logaddexp(0, -exact)])
    assert decide_gate(better, {"a": base, "b": base}, _of(labels), survival=True).shipped
    assert decide_gate(worse, {"a": base, "b": base}, _of(labels)).shipped


def test_leak_remark_names_the_learner_that_differs_from_the_others() -> None:
    labels = np.random.default_rng(0).integers(0, 2, 3000)
    learners = {name: (_noisy(labels, 1.0, k), _noisy(labels, 1.0, 10 + k)) for k, name in enumerate("abc")}

    def remarks(**changed: tuple[np.ndarray, np.ndarray]) -> set[str]:
        return set(leak_remarks({name: (entropy(h), entropy(n)) for name, (h, n) in {**learners, **changed}.items()}))

    values, new = learners["b"]
    assert remarks() == set()
    assert remarks(b=(log_softmax(1.05 * values), new)) == set()
    assert remarks(b=(log_softmax(4 * values), new)) == {"b"}
    assert remarks(b=(values, log_softmax(4 * new))) == set(), "being surer of new events is no leak"
    unclear = {name: (values, log_softmax(0.3 * new)) for name, (values, new) in learners.items()}
    assert remarks(**unclear) == set(), "new events that are harder for every learner accuse none"
    values, new = unclear["b"]
    assert remarks(**unclear | {"b": (log_softmax(4 * values), new)}) == {"b"}
    assert leak_remarks({"b": (entropy(log_softmax(4 * values)), entropy(new))}) == {}, "one alone cannot be judged"


@pytest.mark.slow
def test_of_a_hundred_pairs_of_equal_learners_few_claim_a_gain() -> None:
    """Two learners that know the same, each with an error of its own that no pool can tell from the truth.

    Some 6 of 100 claim a gain: the pool's weights are fitted to more events than a single learner's temperature.
    """
    claimed = 0
    for seed in range(100):
        rng = np.random.default_rng(seed)
        labels = rng.integers(0, 3, 3_000)
        known = log_softmax(1.5 * np.eye(3)[labels] + rng.normal(size=(3_000, 3)))
        # The same posterior twice: whatever the second level finds in their out-of-fold predictions is chance.
        inner, outer = np.arange(3_000) < 2_000, np.arange(3_000) >= 2_000
        sample = Sample(labels, np.arange(3_000) % 3)
        pair = {name: log_softmax(known + 1e-3 * rng.normal(size=known.shape)) for name in "ab"}
        stack = fit_stack({name: z[inner] for name, z in pair.items()}, sample.take(inner))
        held_out = {name: z[outer] for name, z in pair.items()}
        _, stacked = calibrated(stack.pool(held_out), sample.take(outer))
        learners = {name: calibrated(z, sample.take(outer))[1] for name, z in held_out.items()}
        claimed += decide_gate(stacked, learners, sample.take(outer)).claimed
    assert claimed <= 18
