"""A run as ONNX files: the whole chain gives what the run predicts, and says how it is used."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from showerstack.runtime.context import Context

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

import showerstack
from showerstack.models.base.inputs import TARGETS
from showerstack.models.base.learner import Batch
from showerstack.models.onnx.graph import COLUMNS, GRID, Portable
from showerstack.models.onnx.predictor import averaged, run_graph, session
from showerstack.models.pretraining.learner import PretrainedLearner
from showerstack.report.doctor.soundness import check_folder
from showerstack.runtime.errors import InputError
from showerstack.runtime.files import hash_file
from showerstack.runtime.packages import EXTRAS
from showerstack.showers.schema import COMPOSITION, GAMMA
from showerstack.stacking.config import StackConfig
from showerstack.stacking.estimates import OWN_ENERGY, Posterior
from showerstack.stacking.events import ShowerEvents
from showerstack.stacking.export.exported import SavedGraphs, open_run
from showerstack.stacking.export.writer import combination_graph, export_run
from showerstack.stacking.prediction.predict import predict, predict_fits
from showerstack.stacking.prediction.predictable import SavedFits
from showerstack.stacking.prediction.run import load
from showerstack.stacking.sample import Sample
from showerstack.stacking.second_level import POOLS, fit_pool
from showerstack.stacking.tables.data import FrameEvents
from showerstack.stacking.training.train import stack
from tests.program import ROOT, call, environment

# The exporter silences its libraries, but another thread that does the same may undo it.
pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning"),
    pytest.mark.usefixtures("one_registry"),
]

LEARNERS = ("xgboost", "lenet_fits")
"""One of trees, one of grids."""
SETTINGS = {"xgboost": {"rounds": 40}, "lenet_fits": {"epochs": 1}}


def run_combination(opened: Any, fits: Mapping[str, np.ndarray], context: np.ndarray | None) -> dict[str, np.ndarray]:
    """Return all outputs of a combination by name, from (F, n, C) log-probabilities by learner and (n, K) context."""
    wanted = [one.name for one in opened.get_inputs()]
    feed = {name: np.ascontiguousarray(z.transpose(1, 0, 2), dtype=np.float32) for name, z in fits.items()}
    if context is not None:
        feed["context"] = context.astype(np.float32)
    names = [one.name for one in opened.get_outputs()]
    return dict(zip(names, opened.run(names, {name: feed[name] for name in wanted}), strict=True))


@pytest.fixture(scope="module")
def finished(tiny_gamma: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run for gamma/hadron separation."""
    run = tmp_path_factory.mktemp("portable") / "run"
    stack(
        StackConfig(
            run=run, task="gamma", data=tiny_gamma, preset="quick", learners=LEARNERS, settings=SETTINGS, folds=2,
            workers=1, device="cpu", prune=0.0,
        )
    )  # fmt: skip
    return run


@pytest.fixture(scope="module")
def exported(finished: Path, tiny_gamma: Path) -> Path:
    """All learners of it as ONNX files, compared on the test showers."""
    out = finished.parent / "onnx"
    result = export_run(finished, out, LEARNERS, tiny_gamma / "gamma_test")
    assert result.written == {"xgboost": 2, "lenet_fits": 2}
    assert result.refused == {}
    assert result.largest_difference is not None
    assert 0 < result.largest_difference < 1e-5
    return out


@pytest.mark.slow
def test_files_alone_give_what_the_run_predicts(exported: Path, finished: Path, tiny_gamma: Path) -> None:
    described = json.loads((exported / "export.json").read_text())
    events = ShowerEvents(tiny_gamma / "gamma_test", tiny_gamma / "gamma_test.features", GAMMA)
    fits = {}
    for row in described["learners"]:
        outcomes = []
        for fit in row["fits"]:
            parts = []
            for file in fit["files"]:
                assert hash_file(exported / file["file"]) == file["sha256"]
                batch: Batch = events.batch(np.arange(len(events)), tuple(file[COLUMNS]), grids="grid" in file)
                parts.append(run_graph(session(exported / file["file"]), tuple(file[COLUMNS]), batch))
            outcomes.append(averaged(parts, fit["average"]))
        fits[row["name"]] = np.stack(outcomes)
    result = run_combination(session(exported / described["combination"]["file"]), fits, events.context())
    expected = predict(load(finished), tiny_gamma / "gamma_test", Context()).concatenated()
    np.testing.assert_allclose(np.exp(result["log_probability"]), np.exp(expected.log_proba), atol=1e-5)
    assert expected.scores is not None
    np.testing.assert_allclose(result["gamma_score"], expected.scores, atol=1e-3)
    assert set(described["combination"]["outputs"]) == set(result)


@pytest.mark.slow
def test_one_network_is_one_file_and_what_ships(tiny_composition: Path, tmp_path: Path) -> None:
    result = stack(
        StackConfig(
            run=tmp_path / "run", task="composition", data=tiny_composition, preset="quick", learners=("pretrained",),
            settings={"pretrained": {"epochs": 1}}, folds=2, workers=1, device="cpu", pools=("log_pool",), holdout=0.5,
        )
    )  # fmt: skip
    (row,) = result.manifest.learners
    assert row.one_network, result.manifest.remarks
    assert result.manifest.truth["learner"] == "pretrained"
    assert result.predictions is not None
    bundle, own = load(result.run), Context(device="cpu")
    for options in ({}, {}, {"no_table": True}):
        again = predict(bundle, tiny_composition / "composition_test", own, **options).concatenated()
        np.testing.assert_array_equal(again.log_proba, result.predictions.log_proba)
        for name in ("lg_energy", "core_x_error_m"):
            np.testing.assert_array_equal(again.arrays[name], result.predictions.arrays[name])
    network = PretrainedLearner.load(result.run / "learners" / "pretrained" / "average")
    events = ShowerEvents(
        tiny_composition / "composition_test", tiny_composition / "composition_test.features", COMPOSITION
    )
    batch = events.batch(np.arange(len(events)), tuple(row.features), grids=False)
    energy = network.predict_targets(batch)[:, OWN_ENERGY, 0] * TARGETS[OWN_ENERGY].width + TARGETS[OWN_ENERGY].centre
    np.testing.assert_allclose(result.predictions.arrays["lg_energy"], energy, atol=1e-9)
    values = export_run(result.run, tmp_path / "onnx", None, tiny_composition / "composition_test")
    assert values.written == {"pretrained": 1}
    assert values.refused.keys() == {"energy and core"}, "columns that predictions with the files lack"
    described = json.loads((tmp_path / "onnx" / "export.json").read_text())
    assert described["combination"]["inputs"] == {"pretrained": ["n", 1, 5]}
    ((file,),) = (fit["files"] for fit in described["learners"][0]["fits"])
    assert file["file"] == "learners/pretrained/average.onnx"
    raw = run_graph(session(tmp_path / "onnx" / file["file"]), tuple(file[COLUMNS]), batch)
    combination = session(tmp_path / "onnx" / described["combination"]["file"])
    outcome = run_combination(combination, {"pretrained": raw[None]}, events.context())
    np.testing.assert_allclose(np.exp(outcome["log_probability"]), np.exp(result.predictions.log_proba), atol=1e-5)


@pytest.mark.slow
def test_an_export_predicts_as_its_run_without_the_learners_libraries(
    exported: Path, finished: Path, tiny_gamma: Path, tmp_path: Path
) -> None:
    others = {library for extra, libraries in EXTRAS.items() if extra != "onnx" for library in libraries}
    command = ["cli.py", "predict", "--run", exported, "--data", tiny_gamma / "gamma_test", "--out", tmp_path / "n.npz"]
    made = subprocess.run(
        [sys.executable, *map(str, command)],
        cwd=ROOT,
        env=environment(tmp_path, others),
        capture_output=True,
        text=True,
    )
    assert made.returncode == 0, made.stderr
    expected = predict(load(finished), tiny_gamma / "gamma_test", Context()).concatenated()
    with np.load(tmp_path / "n.npz") as stored:
        np.testing.assert_allclose(np.exp(stored["log_proba"]), np.exp(expected.log_proba), atol=1e-5)
        np.testing.assert_allclose(stored["gamma_scores"], expected.arrays["gamma_scores"], atol=1e-3)
        assert str(stored["config_hash"]) == expected.config_hash
        assert str(stored["test_fingerprint"]) == expected.test_fingerprint
    made = subprocess.run(
        [sys.executable, *map(str, command)], cwd=ROOT, env=environment(tmp_path, (*others, "onnxruntime")),
        capture_output=True, text=True,
    )  # fmt: skip
    assert made.stderr == f"error: predicting with {exported} needs onnxruntime: pip install 'showerstack[onnx]'\n"


@pytest.mark.slow
def test_an_export_on_a_table_predicts_rows_from_python(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    y = rng.integers(0, 3, 600)
    x = rng.normal(size=(600, 3)) + 1.5 * y[:, None]
    run = showerstack.fit(
        x, y + 5, run=tmp_path / "run", learners=("xgboost",), preset="quick", folds=2, repeats=1, holdout=0.0,
        workers=1, device="cpu", settings={"table.xgboost": {"rounds": 20}},
    )  # fmt: skip
    export_run(run.folder, tmp_path / "onnx")
    again, expected = showerstack.predict(tmp_path / "onnx", x), run.predict(x)
    np.testing.assert_allclose(again.probabilities, expected.probabilities, atol=1e-5)
    assert again.labels.tolist() == expected.labels.tolist()
    assert set(again.labels.tolist()) == {5, 6, 7}


@pytest.mark.slow
def test_an_export_that_lacks_something_is_refused(
    exported: Path, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import onnx

    needed = load(finished).chain.needed[0]
    rows = json.loads((exported / "export.json").read_text())["learners"]
    (file,) = next(row for row in rows if row["name"] != needed)["fits"][0]["files"]
    shape = tuple(file[GRID]) if GRID in file else None
    graph = Portable(onnx.load(exported / file["file"]), tuple(file[COLUMNS]), shape)
    monkeypatch.setattr("showerstack.stacking.export.writer.graphs_of", lambda learner: [graph])  # traced already
    monkeypatch.setattr(
        "showerstack.stacking.export.writer._events_to_compare", lambda *arguments: None
    )  # of any learner
    export_run(finished, tmp_path / "part", [name for name in LEARNERS if name != needed])
    with pytest.raises(InputError, match=rf"part lacks .*{needed}.*, which predictions need: export the run without"):
        open_run(tmp_path / "part")
    copy = shutil.copytree(exported, tmp_path / "copy")
    (copy / "meta" / "stack.json").unlink()
    with pytest.raises(InputError, match=r"meta/stack\.json"):
        open_run(copy)


def test_an_error_takes_back_predictions_that_have_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[Any] = []

    def fail(opened: Any, columns: tuple[str, ...], batch: Batch) -> np.ndarray:
        begun.append(opened)
        time.sleep(0.02)
        raise RuntimeError("no such graph")

    monkeypatch.setattr("showerstack.models.onnx.predictor.session", lambda file: file)
    monkeypatch.setattr("showerstack.models.onnx.predictor.run_graph", fail)
    places = [Path(f"{k}.onnx") for k in range(50)]
    fits = tuple(SavedGraphs(place, ("a", "b"), ((place, ("x",)),), "log") for place in places)
    events = FrameEvents(np.zeros((3, 1), np.float32), ("x",), "hash")
    with pytest.raises(RuntimeError, match="no such graph"):
        list(predict_fits(events, [SavedFits("one", fits, ("x",), False)], Context(workers=1), print))
    assert len(begun) < 50


@pytest.mark.slow
def test_check_finds_damage_to_an_export(exported: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(exported, tmp_path / "copy")
    assert check_folder(copy) == ("export", [])
    file = next(copy.rglob("*.onnx"))
    file.write_bytes(file.read_bytes()[:-1])
    kind, problems = check_folder(copy)
    assert kind == "export"
    assert problems == [f"{file} is not the file that was written (damaged, truncated or replaced)"]


@pytest.mark.slow
def test_every_column_has_its_unit(exported: Path) -> None:
    described = json.loads((exported / "export.json").read_text())
    used = {name for row in described["learners"] for name in row["fits"][0]["files"][0]["columns"]}
    assert used <= set(described["columns"])
    assert all(described["columns"][name]["unit"] for name in used)
    assert described["opsets"]["ai.onnx"] >= 18
    assert described["classes"] == list(GAMMA.classes)


@pytest.mark.slow
@pytest.mark.parametrize("name", POOLS)
def test_every_pool_has_a_graph(name: str, finished: Path) -> None:
    rng = np.random.default_rng(2)
    labels = rng.integers(0, 2, 2000)
    margin = np.where(labels == 0, 1.0, -1.0) + rng.normal(size=(2, len(labels)))
    log_proba = dict(
        zip(LEARNERS, np.stack([-np.logaddexp(0, -margin), -np.logaddexp(0, margin)], axis=-1), strict=True)
    )
    chain = load(finished).chain
    pool = fit_pool(name, log_proba, Sample(labels, labels * 0))
    chain = replace(chain, pool=pool, shipped="stack", scales={**chain.scales, "stack": 1.3})
    fits = {one: np.log(rng.dirichlet([1.0, 1.0], (chain.n_fits, 500))) for one in chain.needed}
    result = run_combination(session(combination_graph(chain).SerializeToString()), fits, None)
    expected = chain.posteriors({name: Posterior(z) for name, z in fits.items()})["stack"]
    np.testing.assert_allclose(np.exp(result["log_probability"]), np.exp(expected), atol=1e-5)
    assert list(chain.procedure.outputs) == ["gamma_score"]


def test_what_cannot_be_exported_is_told(finished: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has no learner catboost: choose from"):
        export_run(finished, tmp_path / "a", ("catboost",))
    assert "exists" in call("cli.py", "export", "--run", finished, "--out", tmp_path, "--quiet", code=2).stderr
