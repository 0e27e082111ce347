"""What docs/extending.md and docs/other_files.md show works as it stands, and is what ``examples/plugin`` holds."""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from types import ModuleType

import numpy as np
import polars as pl
import pytest

from showerstack.features import catalogue as features_catalogue
from showerstack.features import compute, groups
from showerstack.features.device import namespace
from showerstack.models import registry
from showerstack.models.base.learner import Batch
from showerstack.models.base.posterior import log_softmax
from showerstack.report.doctor.folders import column_quartiles, folder_findings
from showerstack.report.run_page import write_report
from showerstack.runtime.code import objects_by_name
from showerstack.runtime.errors import InputError
from showerstack.scoring import tasks as scoring_tasks
from showerstack.scoring.score import score_file
from showerstack.scoring.tasks import target
from showerstack.showers import schema
from showerstack.showers.archives import formats as archive_formats
from showerstack.showers.archives.formats import convert_foreign
from showerstack.showers.array import KASCADE
from showerstack.showers.simulation import blocks, primaries, simulate
from showerstack.showers.simulation.settings import load_settings
from showerstack.stacking import config as run_config
from showerstack.stacking import second_level as pools
from showerstack.stacking.prediction import predict
from showerstack.stacking.prediction import predictable as read
from showerstack.stacking.sample import Sample
from showerstack.stacking.training.train import stack
from tests.models.test_contract import test_contract as keeps_the_contract

DOCS = Path(__file__).parent.parent / "docs"
BLOCKS = {
    block.partition("\n")[0].removeprefix("# "): block
    for page in ("extending.md", "other_files.md")
    for block in re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), flags=re.DOTALL)
}
"""Blocks by their first line, which names the file that they belong into."""


PLUGIN = DOCS.parent / "examples" / "plugin"


@pytest.mark.parametrize("module", ["frequencies", "trigger", "sharpened", "event_table"])
def test_the_pages_show_the_example(module: str) -> None:
    name = f"showerstack_example/{module}.py"
    assert BLOCKS[name] == f"# {name}\n{(PLUGIN / name).read_text()}"
    assert f'{module} = "showerstack_example.{module}"' in (PLUGIN / "pyproject.toml").read_text()


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """Import a module of the example as an installation would."""
    monkeypatch.syspath_prepend(PLUGIN)
    return lambda name: importlib.import_module(f"showerstack_example.{name}")


Example = Callable[[str], ModuleType]


def test_a_feature_group(example: Example, monkeypatch: pytest.MonkeyPatch) -> None:
    module = example("trigger")
    monkeypatch.setattr(groups, "installed_modules", lambda group: {"trigger": module})
    assert groups.modules()[-1] is module
    monkeypatch.setattr(compute, "MODULES", groups.modules())
    monkeypatch.setitem(features_catalogue.CATALOGUE, "trigger_share", module.FEATURES[0])
    grids = np.zeros((2, *KASCADE.grid_shape), np.float32)
    grids[1, :4, :4, 0] = 10.0
    columns = compute.compute_chunk(namespace("cpu"), grids, np.zeros((2, 5), np.float32), frozenset({"trigger"}))
    np.testing.assert_allclose(columns["trigger_share"], [0.0, 16 / 252], rtol=1e-6)


def test_a_learner(example: Example, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    modules = (*registry.MODULES, example("frequencies"))
    monkeypatch.setattr(registry, "LEARNERS", objects_by_name(modules, "LEARNERS", attrgetter("name")))
    labels = np.repeat([0, 1], [30, 10])
    events = Batch(index=np.arange(40), table=np.arange(40, dtype=np.float32)[:, None], columns=("x",), labels=labels)
    learner = registry.create(registry.spec("frequencies"), ("gamma", "hadron"))
    learner.fit(events, events, seed=1).save(tmp_path / "saved")
    np.testing.assert_allclose(np.exp(registry.load(tmp_path / "saved").predict_log_proba(events)[0]), [0.75, 0.25])
    keeps_the_contract("frequencies", tmp_path / "contract")


def test_a_pool(example: Example, monkeypatch: pytest.MonkeyPatch) -> None:
    """Learners that are half as sharp as they should be: one sharpness is all that the average lacks."""
    rng = np.random.default_rng(1)
    labels = rng.integers(0, 2, 20_000)
    logits = 4.0 * rng.normal(size=(20_000, 2)) + 8.0 * np.eye(2)[labels]  # ln ratio is the difference times 1/2
    learners = {name: log_softmax(0.25 * logits) for name in "ab"}
    sample = Sample(labels, np.arange(20_000) % 4)
    monkeypatch.setattr(pools, "installed_modules", lambda group: {"sharpened": example("sharpened")})
    pools.pool_specs.cache_clear()
    try:
        assert list(pools.pool_specs()) == [*pools.POOLS, "sharpened_average"]
        stack = pools.fit_stack(learners, sample, tolerance=0, names=("average", "sharpened_average"))
        assert stack.pool.name == "sharpened_average"
        np.testing.assert_allclose(stack.pool.weights, [1.0, 1.0], rtol=0.1)  # 2 of the sum, by halves
        identity = run_config.TableConfig(run="r", table="t", label="l", pools=("sharpened_average",)).identity()
        assert identity["pools"] == ["sharpened_average of version 1"]
        bad = pools.PoolSpec("bad", lambda z, sample: (-np.ones(2), np.ones((2, 2)), np.zeros(2)))
        monkeypatch.setattr(pools, "pool_specs", lambda: {"bad": bad})
        with pytest.raises(InputError, match=r"pool 'bad' is not usable: it has to return weights \(2,\)"):
            pools.fit_pool("bad", learners, sample)
    finally:
        monkeypatch.undo()
        pools.pool_specs.cache_clear()


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_a_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema, "TASKS", dict(schema.TASKS))
    entry = compile(BLOCKS["showers/schema.py"], "schema", "exec")
    monkeypatch.setattr(schema, "DEPTH", None, raising=False)
    exec(entry, vars(schema))
    depth = schema.TASKS["depth"]
    for module in (blocks, run_config, scoring_tasks, read, predict):
        monkeypatch.setattr(module, "TASKS", schema.TASKS)
    monkeypatch.setattr(target, "EDGES", dict(target.EDGES))
    exec(BLOCKS["scoring/tasks/target.py"], vars(target) | {"DEPTH": depth})
    simulate(depth, tmp_path, n_train=1200, n_test=400, seed=3, train_cuts="test", workers=1)
    options = {"learners": ("quadratic_logit", "lightgbm"), "folds": 2, "workers": 1, "device": "cpu"}
    options |= {"pools": ("average", "log_pool"), "settings": {"lightgbm": {"rounds": 40}}}
    stack(run_config.StackConfig(task="depth", data=tmp_path, run=tmp_path / "run", preset="quick", **options))
    metrics = score_file(tmp_path / "run" / "predictions.npz", tmp_path, depth)
    constant = float(np.std(np.load(tmp_path / "depth_test" / "labels_depth.npy")))
    assert metrics["resolution"] < 0.95 * constant
    assert abs(metrics["bias"]) < 0.2 * constant
    assert "g/cm2" in write_report(tmp_path / "run", tmp_path).read_text()


def test_a_file_format(example: Example, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = example("event_table")
    monkeypatch.setattr(archive_formats, "installed_modules", lambda group: {"event_table": module})
    (tmp_path / "mine").mkdir()
    frame = pl.DataFrame({"E": [15.0, 15.5, 16.0], "Ze": [10.0, 20.0, 25.0], "Ne": [5.0, 5.5, 6.0]})
    frame.write_csv(tmp_path / "mine" / "events.csv")
    lines = [(line.what, line.outcome) for line in folder_findings(tmp_path / "mine")]
    assert lines[:2] == [("format", "a table of events"), ("mine", "3 events without deposits by station")]
    (columns,) = column_quartiles([tmp_path / "mine"])
    assert (columns["events"], columns["E"]) == (3, (15.25, 15.5, 15.75))
    (table,) = convert_foreign(tmp_path / "mine", tmp_path / "out", None)
    assert pl.read_parquet(table).equals(frame)


def test_a_hadronic_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = load_settings()
    usual = primaries.throw_primaries(schema.COMPOSITION, 4000, "mix", settings.spectrum, np.random.default_rng(1))
    monkeypatch.setattr(primaries, "MODELS", dict(primaries.MODELS))
    monkeypatch.setattr(blocks, "MODELS", primaries.MODELS)
    exec(BLOCKS["showers/simulation/primaries.py"], vars(primaries))
    mixed = primaries.throw_primaries(schema.COMPOSITION, 4000, "mix", settings.spectrum, np.random.default_rng(1))
    np.testing.assert_array_equal(mixed.model, usual.model, "without a weight it is in no mix")
    simulate(schema.COMPOSITION, tmp_path, n_train=300, n_test=100, seed=1, model="deep", workers=1)
    assert json.loads((tmp_path / "composition_test" / "source.json").read_text())["model"] == "deep"
    number = np.full(2, list(primaries.MODELS).index("deep"))
    iron = primaries.model_shift(number, 56, settings.cascade)
    np.testing.assert_allclose(iron[:, 0], [20.0, 0.01 * (np.log10(56) - 0.9), 0.05])
    streams = [
        blocks.random_generator(blocks.BlockJob(schema.COMPOSITION, "train", 1, model, "none", settings), 0).random()
        for model in (*primaries.MODELS, "mix")
    ]
    assert len(set(streams)) == len(streams), "each model has random numbers of its own"
    with pytest.raises(InputError, match=r"choose one of qgs, epos, sibyll, .*, deep, mix"):
        primaries.model_shares(schema.COMPOSITION, "shallow")
