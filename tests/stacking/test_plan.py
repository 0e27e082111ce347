"""A run's time and memory: plans that fit, limits that are kept, estimates that come true, remarks on what is left out.

Memory is estimated before a run begins, and bounded where a learner does not need the whole table.
"""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest
import torch

import showerstack.stacking.inputs.events
from showerstack.models.base.learner import Batch
from showerstack.models.networks.data import EventTensors, GridSource
from showerstack.models.networks.loop import BLOCK_EVENTS, BLOCKS_AT_ONCE, _epoch_orders, shuffled_in_blocks
from showerstack.models.registry import spec
from showerstack.models.tables.logit import QuadraticLogit
from showerstack.report.outcome import outcome
from showerstack.report.run_sections import no_time_for
from showerstack.runtime.context import Context, PlainConsole
from showerstack.runtime.cost import PACE, Deadline, in_words, seconds_of
from showerstack.runtime.errors import InputError
from showerstack.runtime.files import read_json, write_json
from showerstack.stacking.budget import LIBRARIES, PLAN_FILE, Clock, StoredPlan, available_bytes, estimated, once_more
from showerstack.stacking.fit import tasks
from showerstack.stacking.fit.plan import FIXED_S, STUDENT_STEP_S, RunPlan, RunSizes, SecondLevel, make_plan
from showerstack.stacking.fit.running import RemainingTime, _attempt
from showerstack.stacking.fit.speed import LearnerRate, measure_rates
from showerstack.stacking.inputs.events import ROW_GROUP, TableEvents
from showerstack.stacking.inputs.tables import write_table
from showerstack.stacking.run.chain import STUDENT
from showerstack.stacking.run.config import TableConfig
from showerstack.stacking.run.read import Run
from showerstack.stacking.train import stack
from tests.stacking.conftest import CLASSES, gaussians
from tests.stacking.fakes import FAKES

SIZES = RunSizes(n_train=1_000_000, n_predict=300_000, n_folds=5, repeats=1, workers=2)
RATES = [
    LearnerRate("trees", "rounds", 1000, 1e-3, 2e-8, 1e-5),
    LearnerRate("small", "epochs", 14, 0.0, 2e-5, 1e-5),
    LearnerRate("large", "epochs", 14, 0.0, 2e-3, 5e-4),
]


def test_lengths_of_time() -> None:
    assert [seconds_of(text) for text in ("4h", "30m", "90s", "1h30m", "1d", "0.5h")] == [
        14400, 1800, 90, 5400, 86400, 1800,
    ]  # fmt: skip
    for wrong in ("", "4", "h", "4 hours", "-1h", "0s"):
        with pytest.raises(InputError, match="write it like 4h"):
            seconds_of(wrong)
    with pytest.raises(InputError, match="at most 1000d"):
        seconds_of("99999999999999999999d")
    assert [in_words(s) for s in (5, 600, 9000, 360_000)] == ["5 s", "10 min", "2.5 h", "100 h"]


def test_without_a_limit_everything_is_planned_as_the_preset_has_it() -> None:
    plan = make_plan(RATES, SIZES, None)
    assert [share.learner for share in plan.shares] == ["trees", "small", "large"]
    assert all(share.rows is None for share in plan.shares)
    fit = 14 * 2e-3 * 800_000 + 300_000 * 5e-4
    assert plan.shares[-1].task_s == pytest.approx(fit)
    assert plan.training_s == pytest.approx(sum(share.task_s for share in plan.shares) * 5 / 2)
    assert plan.options({}, {"small": 14, "trees": 1000, "large": 14})["settings"] == {}


@pytest.mark.parametrize("limit_s", [300, 1000, 3600, 14_400, 86_400])
def test_plans_keep_the_limit_and_use_it(limit_s: float) -> None:
    plan = make_plan(RATES, SIZES, limit_s)
    assert plan.total_s <= 0.86 * limit_s
    assert plan.folds == 3 or not any(share.rows for share in plan.shares)
    names = {share.learner for share in plan.every}
    assert names == {"trees", "small", "large"}
    if limit_s < 86_400:
        assert plan.total_s > 0.4 * limit_s, "or nothing more would have fitted"


def test_more_time_never_means_less_training() -> None:
    def trained(limit_s: float) -> float:
        return sum((share.rows or 666_667) * share.amount for share in make_plan(RATES, SIZES, limit_s).shares)

    amounts = [trained(limit_s) for limit_s in (300, 1000, 3600, 14_400)]
    assert all(low <= high for low, high in pairwise(amounts))


@pytest.mark.parametrize(("slowness", "stays"), [(1.0, True), (100.0, False)])
def test_the_best_learner_is_left_out_last_unless_it_needs_too_much(slowness: float, stays: bool) -> None:
    large = RATES[2]
    others = [*RATES[:2], replace(large, learner="middle", event_s=large.event_s / 2)]
    best = replace(large, event_s=slowness * large.event_s, last_out=True)
    limit_s = (1085 + FIXED_S) / 0.85
    plan = make_plan([*others, best], SIZES, limit_s)
    assert [share.learner for share in plan.spare] == (["middle"] if stays else ["large"])
    assert {"trees", "small"} <= {share.learner for share in plan.shares}
    assert plan.total_s <= 0.86 * limit_s
    assert make_plan([*others, replace(best, last_out=False)], SIZES, limit_s).spare[0].learner == "large"


def test_what_follows_the_fits_is_in_the_plan_and_the_student_learns_less_where_time_is_short() -> None:
    second = SecondLevel(n_inner=400_000, n_holdout=45_000, student_epochs=30, student_events=600_000)
    sizes = replace(SIZES, second=second)
    free, short = make_plan(RATES, sizes, None), make_plan(RATES, sizes, 3600)
    assert free.student_events == 400_000
    assert free.second_level_s > 600, "the student alone takes as long"
    student_s = STUDENT_STEP_S * 30 * short.student_events
    assert student_s == pytest.approx(0.15 * 3600, rel=1e-3)
    assert short.total_s <= 0.86 * 3600
    assert short.options({}, {"small": 14, "trees": 1000, "large": 14})["student_events"] == short.student_events
    waiting = make_plan([replace(rate, waits=2.0) for rate in RATES], sizes, 3600)
    assert waiting.student_events == pytest.approx(short.student_events / 2, abs=1)
    assert make_plan(RATES, replace(sizes, second=replace(second, student_epochs=0)), None).second_level_s < 200


@pytest.mark.parametrize("limit_s", [0.0, 5.0])
def test_a_limit_that_cannot_be_kept_leaves_the_cheapest_learner(limit_s: float) -> None:
    plan = make_plan(RATES, SIZES, limit_s)
    assert [(share.learner, share.rows) for share in plan.shares] == [("trees", 10_000)]
    assert plan.folds == 3
    assert [(share.learner, share.rows) for share in plan.spare] == [("small", 10_000), ("large", 10_000)]
    options = plan.options({}, {"small": 14, "trees": 1000, "large": 14})
    assert options["learners"] == ("trees", "small", "large"), "those that are trained if time is left come last"
    assert RunPlan.from_json(json.loads(json.dumps(plan.as_json()))) == plan
    assert plan.total_s > limit_s
    assert plan.lines()[2] == "  the limit cannot be kept: the cheapest learner alone is trained, on few events"


def test_folds_are_given_up_one_by_one_and_filled_again() -> None:
    # Five folds of these fits take 1,400 s, four 1,120, three 840; the learner left out would take hours.
    one = LearnerRate("one", "epochs", 10, 0.0, 5.6e-5, 0.0)
    sizes = RunSizes(n_train=1_000_000, n_predict=0, n_folds=5, repeats=1, workers=2, second=SecondLevel())
    slow = replace(one, learner="slow", event_s=1.0)
    costs = {folds: one.fit_s(1_000_000 * (folds - 1) / folds, 10) * folds / 2 for folds in (5, 4, 3)}
    for folds, training_s in costs.items():
        limit_s = (training_s + FIXED_S + 1) / 0.85
        for rates in ([one], [one, slow]):
            plan = make_plan(rates, sizes, limit_s)
            assert (plan.folds, plan.shares[0].rows) == (folds, None)
            assert plan.training_s == pytest.approx(training_s)


def test_learners_that_are_left_out_take_no_time_in_the_second_level() -> None:
    sizes = RunSizes(
        n_train=60_000, n_predict=0, n_folds=3, repeats=1, workers=2,
        second=SecondLevel(n_inner=54_000, n_holdout=6000),
    )  # fmt: skip
    slow = [LearnerRate(f"slow-{k}", "epochs", 10, 0.0, 1.0, 0.0, waits=3.0) for k in range(20)]
    # All rows and epochs would take too long: the learner gets what the second level of one learner leaves.
    one = LearnerRate("one", "epochs", 10, 0.0, 2e-4, 0.0, waits=3.0)
    alone, beside = make_plan([one], sizes, 180.0), make_plan([one, *slow], sizes, 180.0)
    assert beside.shares == alone.shares
    assert beside.second_level_s == alone.second_level_s
    assert beside.total_s > 0.8 * 180.0


def test_a_cap_on_events_bounds_what_a_fit_costs(tmp_path: Path) -> None:
    file = _table(tmp_path, 6000)
    events, labels = TableEvents(file, ("x", "y"), "hash"), gaussians(6000, 5)[1].astype(np.int64)
    (rate,) = measure_rates(
        events, (spec("quadratic_logit"),), labels, CLASSES, preset="quick",
        settings={"quadratic_logit": {"max_events": 4000}}, threads=1, devices={}, pools={"cpu": 1},
    )  # fmt: skip
    assert rate.most == 4000
    assert rate.fit_s(5_000_000, 1) == rate.fit_s(4000, 1) > rate.fit_s(2000, 1)


def test_learners_are_timed_with_the_settings_for_the_number_of_rows(tmp_path: Path) -> None:
    sized = replace(
        spec("random_forest"), settings={"trees": 20}, quick={}, by_rows=((0, {"trees": 16}), (10_000, {"trees": 32}))
    )
    events, labels = TableEvents(_table(tmp_path, 6000), ("x", "y"), "hash"), gaussians(6000, 5)[1].astype(np.int64)
    for n_rows, trees in ((4000, 16), (20_000, 32)):
        (rate,) = measure_rates(
            events, (sized,), labels, CLASSES, preset="good", settings={}, threads=1, devices={}, pools={"cpu": 1},
            n_rows=n_rows,
        )  # fmt: skip
        assert rate.full == trees


def test_all_students_are_counted(tmp_path: Path) -> None:
    one = SecondLevel(n_inner=10_000, n_holdout=1000, student_epochs=10, student_events=600_000)
    two = replace(one, students=2.0)
    assert two.seconds(3, 2, 10_000) - one.seconds(3, 2, 10_000) == pytest.approx(STUDENT_STEP_S * 10 * 10_000)
    assert two.student_events_within(30.0, 1.0) == one.student_events_within(30.0, 1.0) // 2


def test_predictions_obey_the_deadline(tmp_path: Path) -> None:
    events = TableEvents(_table(tmp_path, 100), ("x", "y"), "hash")
    learner = FAKES["fake_useless"]
    from showerstack.models.registry import create

    with pytest.raises(tasks.TimeLimitReached, match="time limit"):
        tasks.predict(
            create(learner, CLASSES), events, np.arange(50), ("x", "y"), grids=False, deadline=Deadline(time.time() - 1)
        )


def test_the_student_obeys_the_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("showerstack.stacking.student.create", lambda *arguments, **options: pytest.fail("begun"))
    config = _config(tmp_path, n=400, time_limit="60s", fast=True)
    result = stack(config, Context(began=time.time() - 59))
    assert result.manifest[STUDENT] is None
    assert any("predict --fast is not possible" in line and "time limit" in line for line in result.manifest["remarks"])
    assert [row["status"] for row in result.manifest["learners"]].count("ok") == 1, "a late run is better than none"


def test_fits_leave_processor_time_for_what_follows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rates = [
        LearnerRate(name, "", 1, 0.0, event_s, 0.0, waits=2.0) for name, event_s in (("fast", 1e-4), ("slow", 1e-2))
    ]
    plan = make_plan(rates, RunSizes(9000, 0, 3, 1, 1), 300.0)
    assert plan.waits == 2.0
    assert plan.second_level_s == 2.0 * FIXED_S
    events = TableEvents(tmp_path / "none.parquet", ("x", "y"), "hash")
    every = [
        tasks.FoldTask(tmp_path, replace(FAKES["fake_useless"], name=name), fold, 3, events, None, ("x",), CLASSES)
        for name in ("fast", "slow") for fold in range(3)
    ]  # fmt: skip
    limited = Clock(1000.0, 300.0).limited(plan, every, {"cpu": 2})
    assert [task.deadline for task in limited] == 3 * [None] + 3 * [Deadline(1300.0, FIXED_S)]
    fit_s = plan.shares[1].task_s / 2.0
    assert [task.expected_s for task in limited[3:]] == pytest.approx([fit_s * n / 2 for n in (3, 2, 1)])
    begun: list[str] = []
    monkeypatch.setattr("showerstack.stacking.fit.running.do_task", lambda task: begun.append(task.name))
    for pace, now, fits in ((1.0, 1000.0, True), (1.0, 1280.0, False), (30.0, 1000.0, False)):
        monkeypatch.setattr(PACE, "read", lambda pace=pace: pace)
        monkeypatch.setattr("showerstack.runtime.cost.time.time", lambda now=now: now)
        begun.clear()
        *_, error, remedy = _attempt(limited[3])
        assert (begun, remedy) == (["slow"] if fits else [], None)
        assert ("the time limit of the run left too little for it" in error) != fits


def test_only_the_first_learner_is_tried_where_there_is_no_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("showerstack.stacking.budget.PILOT_SHARE", -1.0)
    result = stack(_config(tmp_path, n=400, time_limit="60s"))
    assert result.manifest["plan"]["left_out"] == ("table.random_forest",)
    assert (
        "left out, of unknown speed (no time to try them, or they failed): table.random_forest"
        in result.manifest["remarks"]
    )
    assert no_time_for(Run.open(result.run), Deadline(time.time() - 1)) == ("importance",)
    assert no_time_for(Run.open(result.run), Deadline(time.time() + 1e6)) == ()
    shown = outcome(result.run, deadline=Deadline(time.time() - 1)).shown
    stream = io.StringIO()
    PlainConsole(file=stream, width=300).print(shown)
    line = f"left out of the report to keep the time limit: importance; python cli.py report {result.run} makes them"
    assert line in stream.getvalue()
    page = (result.run / "report.html").read_text()
    assert line in page
    assert "Which columns matter" not in page


def test_time_left_is_right_within_a_factor_two_from_a_tenth_on() -> None:
    # What a learner takes is up to 45 % away from what was expected, each task another 10 %; the clock is a number.
    rng = np.random.default_rng(3)
    for _ in range(60):
        now = 0.0
        expected = {(name, k): s for name, s in (("a", 5.0), ("b", 40.0), ("c", 300.0)) for k in range(5)}
        factor = {name: rng.uniform(0.7, 1.45) for name in "abc"}
        real = {key: s * factor[key[0]] * rng.uniform(0.9, 1.1) for key, s in expected.items()}
        outlook = RemainingTime(expected, 2, lambda: now)  # noqa: B023
        free, ends = [0.0, 0.0], {}
        for key in expected:
            worker = int(np.argmin(free))
            free[worker] += real[key]
            ends[key] = free[worker]
        total = max(ends.values())
        events: list[tuple[float, tuple[str, int] | None]] = [(t, None) for t in np.linspace(0.1, 0.95, 18) * total]
        for now, key in sorted([*events, *((end, key) for key, end in ends.items())], key=lambda one: one[0]):
            if key is not None:
                outlook.finished(key)
            else:
                assert 0.5 < outlook.left_s() / (total - now) < 2.0
                assert outlook.done_s() == pytest.approx(now, rel=0.35)


def _table(folder: Path, n: int) -> Path:
    points, labels = gaussians(n, 5)
    frame = pl.DataFrame({"x": points[:, 0], "y": points[:, 1], "kind": [CLASSES[k] for k in labels]})
    frame.write_parquet(folder / "train.parquet")
    return folder / "train.parquet"


def _config(folder: Path, n: int = 2400, **options: object) -> TableConfig:
    standard = {
        "run": folder / "run", "table": _table(folder, n), "label": "kind", "preset": "quick", "folds": 3,
        "workers": 1, "learners": ("lightgbm", "random_forest"), "metas": ("log_pool",), "device": "cpu", "fast": False,
        "repeats": 1, "holdout": 0.1, "settings": {"lightgbm": {"rounds": 40}, "random_forest": {"trees": 20}},
    }  # fmt: skip
    return TableConfig(**(standard | options))


def test_measured_rates_foretell_a_fit(tmp_path: Path) -> None:
    file = _table(tmp_path, 20_000)
    events = TableEvents(file, ("x", "y"), "hash")
    labels = gaussians(20_000, 5)[1].astype(np.int64)
    (rate,) = measure_rates(
        events,
        (spec("random_forest"),),
        labels,
        CLASSES,
        preset="quick",
        settings={},
        threads=1,
        devices={},
        pools={"cpu": 1},
    )
    assert (rate.work, rate.full) == ("trees", 80)
    from showerstack.models.registry import create

    batch = replace(events.batch(np.arange(16_000), ("x", "y"), grids=False), labels=labels[:16_000])
    started = time.perf_counter()
    create(spec("random_forest"), CLASSES, preset="quick").fit(batch, batch.take(np.arange(1000)), seed=1)
    took = time.perf_counter() - started
    assert 0.25 < rate.fit_s(16_000, 80) / took < 4.0


def test_a_run_within_its_limit_tells_its_plan_and_a_continued_one_keeps_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    first = stack(_config(tmp_path, n=800, time_limit="5m"))
    assert caplog.messages[1].startswith("plan: 2 learners x 3 folds")
    assert first.manifest["plan"]["limit_s"] is not None
    plan = (tmp_path / "run" / PLAN_FILE).read_bytes()
    (tmp_path / "run" / "checksums.json").unlink()  # as if it had been killed before its last file
    caplog.clear()
    again = stack(_config(tmp_path, n=800, time_limit="5m"))
    assert caplog.messages == [], "nothing is measured again"
    assert (tmp_path / "run" / PLAN_FILE).read_bytes() == plan
    assert again.manifest["config_hash"] == first.manifest["config_hash"]
    for other, changed in (({"time_limit": "6m"}, "time_limit"), ({"time_limit": "5m", "seed": 2}, "seed")):
        with pytest.raises(InputError, match=rf"another configuration \(different: {changed}\)"):
            stack(_config(tmp_path, n=800, **other))


def _slow_after(monkeypatch: pytest.MonkeyPatch, slow: str) -> None:
    """Let one learner's fits meet a deadline that is over."""
    real: Callable[[tasks.FoldTask], None] = tasks.do_task

    def do(task: tasks.FoldTask) -> None:
        real(replace(task, deadline=Deadline(time.time() - 1)) if task.name.endswith(slow) else task)

    monkeypatch.setattr("showerstack.stacking.fit.running.do_task", do)


@pytest.mark.parametrize("in_time", [True, False])
def test_time_that_is_left_by_fewer_folds_goes_to_another_partition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_time: bool
) -> None:
    # The plan fears 5 folds and the fits take seconds: 3 folds twice are done in the time, or 3 folds once ship.
    monkeypatch.setattr("showerstack.stacking.budget.make_plan", lambda *given: replace(make_plan(*given), folds=3))
    real: Callable[[tasks.FoldTask], None] = tasks.do_task
    done: list[tuple[str, int]] = []

    def do(task: tasks.FoldTask) -> None:
        assert (task.deadline is None) == (task.name == first and task.fold < 3)
        real(task if in_time or task.fold < 3 else replace(task, deadline=Deadline(time.time() - 1)))
        done.append((task.name, task.fold))

    first = "table.lightgbm"
    monkeypatch.setattr("showerstack.stacking.fit.running.do_task", do)
    result = stack(_config(tmp_path, n=600, time_limit="5m", folds=5, learners=("lightgbm",)))
    repeats = 2 if in_time else 1
    assert sorted(done) == [(first, fold) for fold in range(3 * repeats)], "no fit is done twice"
    assert result.manifest["config"]["repeats"] == repeats
    assert [row["status"] for row in result.manifest["learners"]] == ["ok"]
    assert {name.split("/")[2] for name in Run.open(result.run).required_files if name.startswith("learners/")} == {
        f"fold-{fold}" for fold in range(3 * repeats)
    }
    done.clear()
    again = stack(_config(tmp_path, n=600, time_limit="5m", folds=5, learners=("lightgbm",)))
    assert (done, again.manifest["config_hash"]) == ([], result.manifest["config_hash"])
    if not in_time:  # killed while the folds were repeated, and late when it goes on: what is complete ships
        content = read_json(result.run / PLAN_FILE)
        write_json(result.run / PLAN_FILE, content | {"options": content["options"] | {"repeats": 2}})
        (result.run / "checksums.json").unlink()
        resumed = stack(_config(tmp_path, n=600, time_limit="5m", folds=5, learners=("lightgbm",)))
        assert resumed.manifest["config"]["repeats"] == 1
        assert [row["status"] for row in resumed.manifest["learners"]] == ["ok"]


def test_nothing_is_repeated_without_time_or_where_all_folds_were_done() -> None:
    plan = make_plan(RATES, SIZES, 14_400)
    made = [replace(plan, folds=folds) for folds in (3, 5)]
    jobs = [
        SimpleNamespace(config=SimpleNamespace(n_folds=one.folds, repeats=1), pools={"cpu": 2}, ctx=Context())
        for one in made
    ]
    for job, one, left_s, more in (
        (jobs[0], made[0], 1e5, True),
        (jobs[0], made[0], 5.0, False),
        (jobs[1], made[1], 1e5, False),
    ):
        stored = once_more(job, StoredPlan("asked", one, {"folds": one.folds}), Clock(time.time(), left_s), 5, [])
        assert (stored is not None) == more
        assert stored is None or stored.options == {"folds": 3, "repeats": 2}


def test_only_events_under_the_cuts_are_expected_to_be_predicted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan_within_limit: list[RunSizes] = []

    def kept(rates: list[LearnerRate], sizes: RunSizes, limit_s: float | None) -> RunPlan:
        plan_within_limit.append(sizes)
        return make_plan(rates, sizes, limit_s)

    monkeypatch.setattr("showerstack.stacking.budget.make_plan", kept)
    monkeypatch.setattr(TableEvents, "passes_evaluation_cuts", lambda events: np.arange(len(events)) % 4 == 0)
    result = stack(_config(tmp_path, n=6000, time_limit="5m", learners=("lightgbm",)))
    (sizes,) = plan_within_limit
    predicted = [
        len(np.load(file)["log_proba"])
        for file in (result.run / "learners" / "table.lightgbm" / "fold-0").glob("*.npz")
    ]
    assert sizes.n_train == 5400
    assert sizes.n_predict == pytest.approx(sum(predicted), abs=10)
    assert sizes.n_predict == pytest.approx(1500 * (0.9 / 3 + 0.1), abs=2)


def test_what_is_not_finished_in_time_is_left_out_and_the_run_ships(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _slow_after(monkeypatch, "random_forest")
    result = stack(_config(tmp_path, time_limit="5m"))
    status = {row["name"].removeprefix("table."): row["status"] for row in result.manifest["learners"]}
    assert status == {"lightgbm": "ok", "random_forest": "failed"}
    error = next(row["error"] for row in result.manifest["learners"] if row["name"].endswith("random_forest"))
    assert "the time limit of the run was reached" in error
    assert result.manifest["gate"]["best_learner"].endswith("lightgbm")


def test_rows_are_limited_where_asked(tmp_path: Path) -> None:
    result = stack(_config(tmp_path, rows={"lightgbm": 400}))
    from showerstack.runtime.files import read_json

    counts = {
        name: read_json(result.run / "learners" / f"table.{name}" / "fold-0" / "task.json")["n_train"]
        for name in ("lightgbm", "random_forest")
    }
    assert counts["lightgbm"] == 400
    assert counts["random_forest"] > 1200


def test_the_first_learner_of_a_plan_never_gives_up(tmp_path: Path) -> None:
    # A clock that is over before the fits begin: what is planned first is finished all the same, the rest is not begun.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Clock, "left_s", property(lambda self: 300.0))
        result = stack(_config(tmp_path, time_limit="1s"))
    status = {row["name"]: row["status"] for row in result.manifest["learners"]}
    first = result.manifest["plan"]["shares"][0]["learner"]
    assert status[first] == "ok"
    assert sorted(status.values()) == ["failed", "ok"]


def test_a_limit_counts_from_when_the_program_was_started(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    stack(_config(tmp_path, n=400, time_limit="60s"), Context(began=time.time() - 59))
    assert "the limit cannot be kept" in " ".join(caplog.messages)


GB = 1_000_000_000


def test_each_row_group_is_read_once_and_only_where_it_is_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    n = 3 * ROW_GROUP + 1000
    frame = pl.DataFrame({"a": np.arange(n, dtype=np.float32), "b": np.arange(n, dtype=np.float32) % 7})
    write_table(tmp_path / "t.parquet", frame)
    read: list[int] = []
    real = showerstack.stacking.inputs.events.read_row_group

    def counting(file: Path, number: int, columns: tuple[str, ...]) -> pl.DataFrame:
        read.append(number)
        result = real(file, number, columns)
        assert len(result) <= ROW_GROUP
        return result

    monkeypatch.setattr(showerstack.stacking.inputs.events, "read_row_group", counting)
    events = TableEvents(tmp_path / "t.parquet", ("a", "b"), "hash")
    rng = np.random.default_rng(0)
    for rows, groups in (
        (np.arange(10), [0]),
        (np.array([3 * ROW_GROUP + 5, 2, ROW_GROUP - 1]), [0, 3]),
        (rng.permutation(n), [0, 1, 2, 3]),
    ):
        read.clear()
        batch = events.batch(rows, ("b", "a"), grids=False)
        assert read == groups
        assert batch.table is not None
        np.testing.assert_array_equal(batch.table, np.column_stack([rows % 7, rows]).astype(np.float32))


def test_what_does_not_fit_is_said_with_the_smallest_change_that_does() -> None:
    specs = [(spec(name), 60) for name in ("lightgbm", "catboost", "mlp")]
    need = estimated(specs, 5_000_000, 5)
    assert need.task["catboost"] == LIBRARIES + 5_000_000 * 60 * 24
    assert need.remark(2, 40 * GB) is None
    assert need.remark(2, None) is None
    assert "--workers 1 fits" in str(need.remark(2, 12 * GB))
    short = str(need.remark(2, 6 * GB))
    assert "catboost" in short
    assert "--workers 1 --learners lightgbm,mlp fits" in short
    assert "give fewer events" in str(need.remark(2, GB))
    small = estimated(specs, 5_000_000, 5, rows={"catboost": 100_000})
    assert small.task["catboost"] < GB
    result = available_bytes()
    assert result is None or result > 10_000_000


def test_the_quadratic_logit_validates_on_few_and_predicts_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    table = np.asfortranarray(rng.normal(size=(40_000, 3)), dtype=np.float32)
    events = Batch(np.arange(40_000), table, ("a", "b", "c"), labels=(table[:, 0] * table[:, 1] > 0).astype(np.int64))
    visited: list[int] = []
    real = QuadraticLogit._terms

    def counting(self: QuadraticLogit, part: np.ndarray) -> np.ndarray:
        visited.append(len(part))
        return real(self, part)

    monkeypatch.setattr(QuadraticLogit, "_terms", counting)
    learner = QuadraticLogit(("x", "y"), {"max_events": 8000}).fit(events, events, seed=1)
    assert max(visited) <= 8000
    assert visited[1] <= 2000
    log_proba = learner.predict_log_proba(events)
    assert max(visited) <= 1 << 14
    assert np.mean(np.argmax(log_proba, axis=1) == events.labels) > 0.95


def test_grids_beyond_memory_are_visited_block_by_block_all_of_them_once() -> None:
    n = (2 * BLOCKS_AT_ONCE + 5) * BLOCK_EVENTS + 17
    order = shuffled_in_blocks(n, np.random.default_rng(1))
    np.testing.assert_array_equal(np.sort(order), np.arange(n))
    first = order[: BLOCK_EVENTS * (BLOCKS_AT_ONCE - 1)]
    assert len(np.unique(first // BLOCK_EVENTS)) <= BLOCKS_AT_ONCE
    assert abs(np.corrcoef(np.arange(len(first)), first)[0, 1]) < 0.02, "mixed inside"
    grids = np.zeros((10_000, 4, 4, 2), dtype=np.float16)
    inputs = torch.zeros(10_000, 1)

    def spread(resident: bool) -> int:
        source = GridSource(grids, np.arange(10_000), torch.device("cpu"), resident=resident)
        batch = _epoch_orders(EventTensors(inputs, source), 40, seed=1, epoch=0)[0]
        return len(np.unique(batch // BLOCK_EVENTS))

    assert spread(True) == spread(False) == 3, "few events are all in one group of blocks"
