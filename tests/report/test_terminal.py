"""The table of learners beside the stack, as a terminal shows it."""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from rich.console import Console

from showerstack.analysis.photons.limits import Background
from showerstack.models.tables import lightgbm
from showerstack.report.doctor import machine
from showerstack.report.outcome import _percent, _simulated_already, _why_alone, learner_table, outcome
from showerstack.report.photons_page import _background_text, _limit_of_fraction
from showerstack.report.shared.subject import mean_loss, read_labels
from showerstack.runtime.context import PlainConsole
from showerstack.runtime.errors import InputError
from showerstack.runtime.files import read_json, write_json, write_npz
from showerstack.runtime.whole_table import WholeTable
from showerstack.scoring.metrics.composition import fraction_error
from showerstack.scoring.tasks import scoring_of
from showerstack.scoring.tasks.text import short
from showerstack.showers.schema import COMPOSITION, GAMMA
from showerstack.stacking.folder import RunFolder
from showerstack.stacking.prediction.run import Run
from showerstack.stacking.stated import ChosenPool, DroppedLearner


def text(table: object, width: int = 80) -> str:
    stream = io.StringIO()
    Console(file=stream, width=width).print(table)
    return stream.getvalue()


def test_a_finished_run_prints_its_table_from_its_files(
    composition_world: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, data = (Path(shutil.copytree(place, tmp_path / place.name)) for place in composition_world)
    reported: list[Path] = []

    def report(run: Path, data: Path, **options: object) -> Path:
        reported.append(run)
        (run / "report.html").write_text("page")
        return run / "report.html"

    monkeypatch.setattr("showerstack.report.outcome.write_report", report)
    first, second = outcome(run, data), outcome(run, data)
    assert len(reported) == 1
    assert text(second.shown, 120) == text(first.shown, 120)
    assert second.content["test"]["mean_fraction_error"] == first.content["test"]["mean_fraction_error"]
    (data / "composition_test" / "labels_composition.npy").touch()
    outcome(run, data)
    assert len(reported) == 2, "labels that are newer are scored again"


def test_composition_table_fits_a_terminal(composition_world: tuple[Path, Path]) -> None:
    run, data = composition_world
    shown = text(learner_table(run, data))
    assert "…" not in shown
    for name in ("random_forest", "lightgbm", "mlp", "average", "stack"):
        assert name in shown
    labels = read_labels(Run.open(run), data).labels
    with np.load(run / "test" / "stack.npz") as archive:
        raw = fraction_error(labels, archive["predictions"].astype(int))
    row = next(line for line in shown.splitlines() if "stack" in line)
    assert f"{raw:.4f} ±" in row
    assert "used for new showers, as decided on held-out showers: stack" in shown


def test_learners_that_failed_are_in_the_table(composition_world: tuple[Path, Path]) -> None:
    lines = text(learner_table(*composition_world)).splitlines()
    (row,) = (line for line in lines if "lenet" in line)
    assert row.split() == ["lenet", "left", "out"]
    assert lines.index(row) < next(k for k, line in enumerate(lines) if line.strip().startswith("average"))


def test_remarks_and_failures_are_told_on_the_terminal(
    composition_world: tuple[Path, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = shutil.copytree(composition_world[0], tmp_path / "run")
    manifest = read_json(run / "manifest.json")
    write_json(run / "manifest.json", manifest | {"remarks": ["rows are in order [of classes]"]})
    RunFolder(run).write_checksums()
    stream = io.StringIO()
    Console(file=stream, width=200).print(outcome(run, tmp_path).shown, soft_wrap=True)
    assert "rows are in order [of classes]" in caplog.messages
    assert "learner lenet was left out, out of memory\n" in stream.getvalue()


def test_gamma_table_fits_a_terminal(gamma_world: tuple[Path, Path]) -> None:
    shown = text(learner_table(*gamma_world))
    assert "…" not in shown
    assert "at 75 % gamma efficiency" in shown


def test_lengths_that_disagree_are_refused(composition_world: tuple[Path, Path], tmp_path: Path) -> None:
    run, data = composition_world
    other = shutil.copytree(run, tmp_path / "run")
    write_npz(other / "test" / "mlp.npz", log_proba=np.zeros((7, 5)))
    RunFolder(other).write_checksums()
    with pytest.raises(InputError, match=r"mlp.npz has 7 events, but the test set has 3000"):
        learner_table(other, data)
    with pytest.raises(InputError, match="is not a finished run folder"):
        learner_table(tmp_path, data)


def test_log_loss_of_known_posteriors() -> None:
    log_proba = np.log(np.array([[0.5, 0.5]] * 3 + [[0.25, 0.75]]))
    losses = scoring_of(GAMMA).losses(np.array([0, 1, 1, 0]), log_proba, log_proba[:, 0])
    value, interval = mean_loss(losses)
    assert value == pytest.approx((3 * np.log(2) + np.log(4)) / 4)
    assert interval.low < value < interval.high


def test_short_numbers() -> None:
    assert [short(v) for v in (0.0, 3.2e-4, 0.5, 1e-10)] == ["0", "3.2e-4", "5.0e-1", "1.0e-10"]


def test_sets_of_an_earlier_demo_in_another_world_are_not_used(
    tiny_composition: Path, tiny_gamma: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert _simulated_already(tiny_composition, COMPOSITION, 2_000, 1_000, 7)
    with pytest.raises(InputError, match="in the world default, the demo asked for 2,000 of seed 7 in gammas: remove"):
        _simulated_already(tiny_gamma, GAMMA, 2_000, 1_000, 7)
    monkeypatch.setattr("showerstack.report.outcome.SIMULATION_VERSION", 0)
    with pytest.raises(InputError, match=r"is of version \d+ of the simulation, this is 0: remove"):
        _simulated_already(tiny_composition, COMPOSITION, 2_000, 1_000, 7)


def test_the_machine_is_asked_what_its_gpu_can_be_used_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "cupy_obstacle", lambda: "CuPy cannot use the GPU: no headers")
    monkeypatch.setattr(machine, "gpu_answers", lambda: True)
    monkeypatch.setattr(machine, "_cuda_of_torch", lambda: None)  # or torch would say that there is none
    for trains, state in ((True, "ok"), (False, "note")):
        monkeypatch.setattr(lightgbm, "trains_on_cuda", lambda trains=trains: trains)
        by_name = {finding.what: finding for finding in machine.findings()}
        assert by_name["lightgbm"].state == state
    assert by_name["cupy"].state == "note"
    assert by_name["cupy"].outcome == "features are computed on the CPU: CuPy cannot use the GPU: no headers"
    assert "features" in by_name["--device auto"].outcome


def test_a_gpu_whose_driver_does_not_work_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(k: int) -> str:
        raise RuntimeError("the NVIDIA driver on your system is too old")

    for name, value in (("is_available", lambda: False), ("device_count", lambda: 1), ("get_device_name", fail)):
        monkeypatch.setattr(f"torch.cuda.{name}", value)
    monkeypatch.setattr(machine, "_cuda_of_torch", lambda: "13.0")
    monkeypatch.setattr(machine, "gpu_answers", lambda: True)
    monkeypatch.setattr(lightgbm, "trains_on_cuda", lambda: False)
    (torch,) = [finding for finding in machine.findings() if finding.what == "torch"]
    assert torch.state == "note"
    assert torch.outcome.endswith("built for CUDA 13.0, no GPU answers")


def test_versions_and_builds_are_read_without_the_libraries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    assert machine._cuda_of_torch() == torch.version.cuda
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").touch()
    (tmp_path / "torch" / "version.py").write_text("__version__ = '2.13'\ncuda: Optional[str] = '12.8'\n")
    monkeypatch.setattr(machine.importlib.util, "find_spec", lambda name: SimpleNamespace(
        submodule_search_locations=[str(tmp_path / name)]))  # fmt: skip
    assert machine._cuda_of_torch() == "12.8"
    monkeypatch.undo()
    program = (
        "import sys; from showerstack.report.doctor import machine; found = [*machine.findings()]; "
        "print({'torch', 'xgboost', 'lightgbm', 'catboost'} & sys.modules.keys(), len(found) > 8)"
    )
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert shown.strip() == "set() True"


def test_a_library_of_another_distribution_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine.importlib.metadata, "requires", lambda name: ["xgboost>=3.1"])
    assert [finding.state for finding in machine._packages()] == ["ok"]


@pytest.mark.parametrize("width", [60, 80, 160])
def test_a_table_keeps_every_cell_at_any_width(width: int) -> None:
    table = WholeTable("energy", title="limits")
    for name in ("events", "background", "fraction", "flux"):
        table.add_column(name, justify="right", no_wrap=True)
    cells = ("15.00-15.25", "123,456", "1,234.5 ± 12.3 of data", "0.00012 [0.00010, 0.00014]", "1.2e-19 a m2 sr s eV")
    table.add_row(*cells)
    screen = PlainConsole(width=width, file=io.StringIO())
    screen.print(table)
    text = screen.file.getvalue()  # type: ignore[attr-defined]
    assert all(word in text for word in ("limits", "background", *cells))
    assert max(map(len, text.splitlines())) <= width
    assert ("┃" in text) == (width == 160)


def test_what_cannot_be_a_share_is_not_shown_as_one() -> None:
    assert [_percent(error) for error in (0.012, 7.76)] == ["1.2 %", "not determined"]
    backgrounds = [Background(0.0), Background(0.0031, 0.0012), Background(1.234, 0.5), Background(0.2, 0.0)]
    assert [*map(_background_text, backgrounds)] == ["0", "0.003 ± 0.001", "1.23 ± 0.50", "0.20 ± 0"]
    assert [_limit_of_fraction(limit) for limit in (0.023, 2.3)] == ["0.023", "not limited"]


@pytest.mark.parametrize(("costs", "less"), [((), True), ((5e-5, 1.9e-4), True), ((1e-5, 2e-4), False)])
def test_a_cost_that_is_not_below_the_tolerance_is_not_said_to_be(costs: tuple[float, ...], less: bool) -> None:
    gone = [DroppedLearner(name=f"{k}", cost=cost, standard_error=1e-5) for k, cost in enumerate(costs)]
    pool = ChosenPool(chosen="average", weights={"best": 1.0}, log_losses={}, left_out=gone)
    assert ("costs less than 0.0002" in _why_alone(pool, 2e-4)) == less
