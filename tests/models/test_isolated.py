"""Learners in a process of their own: the same bits, and a crash there is one line here."""

from __future__ import annotations

import resource
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from showerstack.models import isolated
from showerstack.models.base.learner import Batch
from showerstack.models.base.saving import HEADER_FILE
from showerstack.models.isolated import ROOT, Isolated
from showerstack.models.networks.images import LeNetLearner
from showerstack.models.tables.lightgbm import MODEL_FILE, LightGBM
from showerstack.models.tables.sklearn import RandomForest
from showerstack.runtime.errors import InputError
from showerstack.runtime.files import hash_file, read_json, write_json

CLASSES = ("near", "far")


def _events(n: int, seed: int) -> Batch:
    rng = np.random.default_rng(seed)
    labels = np.arange(n) % 2
    table = np.asfortranarray(rng.normal(size=(n, 3)) + labels[:, None], dtype=np.float32)
    grids = rng.gamma(1.0, size=(n, 16, 16, 2)).astype(np.float16)
    names = ("E", "Ze", "Az", "Ne", "Nmu")
    scalars = rng.normal(4.0, size=(n, 5)).astype(np.float32)
    return Batch(
        np.arange(n), table, ("a", "b", "c"), grids=grids, scalars=scalars, scalar_columns=names, labels=labels
    )


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small booster."""
    folder = tmp_path_factory.mktemp("booster")
    LightGBM(CLASSES, {"rounds": 5}).fit(_events(400, 1), _events(100, 2), seed=1).save(folder)
    return folder


def _altered(saved: Path, folder: Path, name: str, value: str) -> Path:
    """Return a copy whose model says something else in one line of every tree, with a checksum that fits."""
    folder.mkdir()
    lines = (saved / MODEL_FILE).read_text().splitlines()
    changed = [
        f"{name}=" + " ".join([value] * len(line.split("=")[1].split())) if line.startswith(f"{name}=") else line
        for line in lines
    ]
    assert changed != lines
    (folder / MODEL_FILE).write_text("\n".join(changed) + "\n")
    header = read_json(saved / HEADER_FILE)
    header["files"][MODEL_FILE] = hash_file(folder / MODEL_FILE)
    write_json(folder / HEADER_FILE, header)
    return folder


def test_other_process_same_bits(saved: Path, tmp_path: Path) -> None:
    events, new = _events(400, 1), _events(300, 3)
    np.save(tmp_path / "grids.npy", new.grids)
    mapped = replace(new, grids=np.load(tmp_path / "grids.npy", mmap_mode="r"))
    forest = RandomForest(CLASSES, {"trees": 10}).fit(events, _events(100, 2), seed=1)
    network = LeNetLearner(CLASSES, {"epochs": 1}).fit(events, _events(100, 2), seed=1)
    for name, learner in (("forest", forest), ("network", network)):
        learner.save(tmp_path / name)
    with Isolated() as reader:
        opened = {name: reader.load(tmp_path / name) for name in ("forest", "network")} | {
            "booster": reader.load(saved)
        }
        booster = LightGBM.load(saved)
        np.testing.assert_array_equal(opened["booster"].predict_log_proba(new), booster.predict_log_proba(new))
        np.testing.assert_array_equal(opened["forest"].predict_log_proba(new), forest.predict_log_proba(new))
        for batch in (new, mapped):
            same = network.predict_log_proba(batch)
            np.testing.assert_array_equal(opened["network"].predict_log_proba(batch), same)
        assert opened["booster"].importances() == booster.importances()
        with pytest.raises(InputError, match="lack"):
            opened["booster"].predict_log_proba(Batch(new.index, new.table[:, :2], ("a", "b")))


def test_a_crash_is_told_in_one_line_that_names_the_file(saved: Path, tmp_path: Path) -> None:
    folder = _altered(saved, tmp_path / "far", "left_child", "2000000000")
    with pytest.raises(InputError, match=rf"{folder}: .*{MODEL_FILE}.* crashed \(SIG") as message, Isolated() as reader:
        reader.load(folder).predict_log_proba(_events(300, 3))
    assert "\n" not in str(message.value)


def test_a_model_without_end_is_stopped(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    n = 400_000  # so many that the clock's next tick finds it at work
    many = Batch(np.arange(n), np.ones((n, 3), np.float32), ("a", "b", "c"))
    with Isolated() as reader:
        learner = reader.load(saved)
        monkeypatch.setattr(isolated, "PREDICT_S", -1e6)  # less than it has used already
        with pytest.raises(InputError, match="took more processor time"):
            learner.predict_log_proba(many)


def test_a_model_that_takes_memory_without_end_is_told(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = _altered(saved, tmp_path / "wide", "num_class", "1000000")  # 2.4 GB of output for 300 events
    write_json(folder / HEADER_FILE, read_json(folder / HEADER_FILE) | {"device": "cuda"})
    monkeypatch.setattr(isolated, "EXTRA_BYTES", 1 << 28)
    with Isolated() as reader:
        assert np.isfinite(reader.load(saved).predict_log_proba(_events(300, 3))).all()
        with pytest.raises(InputError, match=r"(?i)wide.*memory") as message:
            reader.load(folder).predict_log_proba(_events(300, 3))
    assert "\n" not in str(message.value)


@pytest.mark.faults
def test_limits_of_the_session_stay_and_do_not_stop_the_reader(saved: Path) -> None:
    # As a batch system sets them: hard limits, which no process may raise again.
    code = (
        "import sys, resource as r\n"
        "from pathlib import Path\n"
        "r.setrlimit(r.RLIMIT_CPU, (600, 600)); r.setrlimit(r.RLIMIT_DATA, (8 << 30, 8 << 30))\n"
        "r.setrlimit(r.RLIMIT_FSIZE, (1 << 12, 1 << 12))\n"
        "import numpy as np\n"
        "from showerstack.models.base.learner import Batch\n"
        "from showerstack.models.isolated import Isolated\n"
        "batch = Batch(np.arange(300), np.ones((300, 3), np.float32), ('a', 'b', 'c'))\n"
        "with Isolated() as reader: print(reader.load(Path(sys.argv[1])).predict_log_proba(batch).sum())"
    )
    done = subprocess.run([sys.executable, "-c", code, str(saved)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    batch = Batch(np.arange(300), np.ones((300, 3), np.float32), ("a", "b", "c"))
    assert float(done.stdout) == LightGBM.load(saved).predict_log_proba(batch).sum()


def test_a_reader_that_is_ended_from_outside_does_not_blame_the_model(saved: Path) -> None:
    with Isolated() as reader:
        learner = reader.load(saved)
        reader._process.kill()  # as a system short of memory, or a hard limit of processor time, does
        with pytest.raises(InputError, match=r"ended from outside.*memory.*ulimit") as message:
            learner.predict_log_proba(_events(300, 3))
    assert "damaged" not in str(message.value)


@pytest.mark.parametrize("n_events", [3_000, pytest.param(3_000_000, marks=pytest.mark.faults)])
def test_memory_that_the_session_may_not_take_is_not_the_models_fault(
    saved: Path, tmp_path: Path, n_events: int
) -> None:
    # The smaller batch arrives, and the output of so many classes does not fit; the larger one does not arrive.
    folder = _altered(saved, tmp_path / "wide", "num_class", "100000")
    many = Batch(np.arange(n_events), np.ones((n_events, 3), np.float32), ("a", "b", "c"))
    with Isolated() as reader:
        learner = reader.load(folder)
        process = reader._process.pid
        taken = int(Path(f"/proc/{process}/statm").read_text().split()[5]) * resource.getpagesize()
        resource.prlimit(process, resource.RLIMIT_DATA, (taken + (20 << 20), taken + (20 << 20)))
        with pytest.raises(InputError, match=r"wide.*memory") as message:
            learner.predict_log_proba(many)
    assert "ulimit" in str(message.value)
    assert "damaged" not in str(message.value)
    assert "\n" not in str(message.value)


def test_libraries_find_a_folder_for_temporary_files() -> None:
    # torch asks for one while it loads some networks; the answer is found by writing a few bytes.
    code = (
        "import resource, tempfile; from showerstack.models.isolated import WRITTEN_BYTES as n; "
        "resource.setrlimit(resource.RLIMIT_FSIZE, (n, n)); print(tempfile.gettempdir())"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.faults
def test_reserved_addresses_are_no_memory_and_what_can_be_written_is(saved: Path) -> None:
    # The first is what CUDA does where a GPU answers: address space without end is reserved and never written.
    code = (
        "import sys, mmap; from pathlib import Path; from showerstack.models.isolated import limit_memory; "
        "limit_memory(Path(sys.argv[1]), 1 << 28); flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS; "
        "mmap.mmap(-1, 1 << 40, flags=flags, prot=0); print('reserved', flush=True); bytearray(1 << 29)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(saved)], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "reserved\n", done.stderr
    assert done.stderr.splitlines()[-1] == "MemoryError"
