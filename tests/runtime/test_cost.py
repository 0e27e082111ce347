"""Costs are those of the work, wherever it is done; a process began when it was started, not when it is asked.

Energy comes from counters where they can be read (wraps, shares of a busy machine, the GPU), else from an estimate.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import types
from pathlib import Path

import numpy as np
import pytest

from showerstack.report import doctor
from showerstack.report.shared.text import energy_words as told
from showerstack.report.shared.text import totals
from showerstack.runtime import cost as energy
from showerstack.runtime import processes
from showerstack.runtime.cost import (
    ESTIMATED,
    MEASURED,
    WATTS_PER_CORE,
    Deadline,
    EnergyMeter,
    GpuCounter,
    Pace,
    cpu_counters,
    measured,
    reached,
)

END_UJ = 1_000_000
TICKS = os.sysconf("SC_CLK_TCK")


def zone(folder: Path, number: str, name: str, joules_u: int) -> Path:
    """Write a power zone as the kernel shows it; return its counter."""
    place = folder / f"intel-rapl:{number}"
    place.mkdir(parents=True)
    for file, text in (("name", name), ("energy_uj", str(joules_u)), ("max_energy_range_uj", str(END_UJ))):
        (place / file).write_text(f"{text}\n")
    return place / "energy_uj"


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A pretended machine of one package with memory, and 0 s of busy time."""
    folder = tmp_path / "powercap"
    zone(folder, "0", "package-0", 900_000)
    zone(folder, "0:0", "core", 5)
    zone(folder, "0:1", "dram", 100_000)
    zone(folder, "1", "psys", 7)
    monkeypatch.setattr(energy, "POWERCAP", folder)
    monkeypatch.setattr(energy, "STAT", tmp_path / "stat")
    busy(tmp_path / "stat", 0)
    return folder


def busy(file: Path, seconds: float) -> None:
    """Write the machine's CPU time: so many busy seconds, and idle ones that do not count."""
    file.write_text(f"cpu  {round(seconds * TICKS)} 0 0 987654 4321 0 0 0 0 0\ncpu0 1 2 3\n")


def test_packages_and_memory_are_added_and_a_wrap_is_seen(machine: Path, tmp_path: Path) -> None:
    meter = EnergyMeter()
    assert len(meter.counters) == 2, "neither the cores inside of the package nor the whole board"
    (machine / "intel-rapl:0" / "energy_uj").write_text("100000\n")  # 0.2 J later, beyond the counter's end
    (machine / "intel-rapl:0:1" / "energy_uj").write_text("400000\n")
    meter.read()
    (machine / "intel-rapl:0" / "energy_uj").write_text("300000\n")
    busy(tmp_path / "stat", 4.0)
    result = meter.result(cpu_s=1.0)
    assert result.source == MEASURED
    assert result.cpu_j == pytest.approx((0.2 + 0.2 + 0.3) * 1.0 / 4.0), "a quarter of the machine's busy time"
    assert result.gpu_j is None


def test_a_step_gets_no_more_than_there_was(machine: Path, tmp_path: Path) -> None:
    meter = EnergyMeter()
    (machine / "intel-rapl:0" / "energy_uj").write_text("950000\n")
    busy(tmp_path / "stat", 0.5)
    assert meter.result(cpu_s=2.0).cpu_j == pytest.approx(0.05)


@pytest.mark.parametrize("broken", ["gone", "text", "no machine time"])
def test_without_counters_it_is_estimated(broken: str, machine: Path, tmp_path: Path) -> None:
    counter = machine / "intel-rapl:0" / "energy_uj"
    if broken == "gone":
        counter.unlink()
        assert cpu_counters() == []
    meter = EnergyMeter()
    if broken == "text":
        counter.write_text("what\n")
    elif broken == "no machine time":
        (tmp_path / "stat").unlink()
    result = meter.result(cpu_s=3.0)
    assert (result.cpu_j, result.source) == (3.0 * WATTS_PER_CORE, ESTIMATED)


def test_long_steps_are_read_in_between(machine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(energy, "LOOKS_AGAIN_S", 0.01)
    meter = EnergyMeter()
    package = meter.counters[0]
    with meter.watching():
        for value in (100_000, 900_000, 100_000):  # two ends of the counter
            # As the kernel does it: nobody ever reads half a number.
            (tmp_path / "next").write_text(f"{value}\n")
            (tmp_path / "next").replace(package.file)
            for _ in range(500):
                if package.last_uj == value:
                    break
                energy.threading.Event().wait(0.01)
    busy(tmp_path / "stat", 1.0)
    assert meter.result(1.0).cpu_j == pytest.approx(0.2 + 0.8 + 0.2)


class Failure(Exception):
    """What the pretended library raises."""


def nvml(monkeypatch: pytest.MonkeyPatch, millijoules: list[float], *, works: bool = True) -> list[str]:
    """Pretend NVML whose counter says these numbers in turn; return which GPUs were asked for."""
    asked: list[str] = []
    library = types.ModuleType("pynvml")

    def start() -> None:
        if not works:
            raise Failure("driver not loaded")

    def of(which: int | str) -> str:
        asked.append(str(which))
        return "handle"

    library.NVMLError = Failure  # type: ignore[attr-defined]
    library.nvmlInit = start  # type: ignore[attr-defined]
    library.nvmlDeviceGetHandleByIndex = library.nvmlDeviceGetHandleByUUID = of  # type: ignore[attr-defined]
    library.nvmlDeviceGetTotalEnergyConsumption = lambda handle: millijoules.pop(0)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pynvml", library)
    return asked


def test_the_gpu_counts_where_it_works(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    asked = nvml(monkeypatch, [1000.0, 1000.0, 6500.0])
    with measured("train", device="cuda") as cost:
        pass
    assert cost.gpu_j == pytest.approx(5.5)
    assert asked == ["0"]
    with measured("train") as on_cpu:
        pass
    assert on_cpu.gpu_j is None


@pytest.mark.parametrize(("visible", "expected"), [("3,1", "3"), ("GPU-12ab", "GPU-12ab")])
def test_the_gpu_that_cuda_takes(visible: str, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    asked = nvml(monkeypatch, [1.0])
    assert GpuCounter.open() is not None
    assert asked == [expected]


def test_no_library_and_no_driver_are_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml(monkeypatch, [], works=False)
    assert GpuCounter.open() is None
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert GpuCounter.open() is None


def test_totals_say_what_was_counted() -> None:
    old = {"cpu_s": 360.0, "wall_s": 400.0}
    counted = {"cpu_s": 360.0, "cpu_j": 1800.0, "energy_source": MEASURED, "gpu_j": 7200.0}
    assert totals([old])["energy_wh"] == pytest.approx(1.0)
    both = totals([old, counted])
    assert both["energy_wh"] == pytest.approx(1.0 + 0.5 + 2.0)
    assert both["measured_share"] == pytest.approx(1800 / 5400)
    assert told(totals([old]), "cuda").endswith("the GPU's is not included.")
    assert told(totals([counted]), "cuda").startswith("The processor's energy was counted by RAPL")
    assert "(2.00 Wh) was counted by NVML" in told(both, "cuda")


def test_the_doctor_says_how(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert doctor._energy().state == "ok"
    assert "measured by RAPL (package-0, dram)" in doctor._energy().outcome
    (machine / "intel-rapl:0" / "energy_uj").unlink()
    assert "readable for the administrator alone" in doctor._energy().outcome
    assert doctor._energy().state == "note"


BUSY = "import time\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass\n"


def test_cpu_time_of_ended_and_of_living_children_counts_once() -> None:
    with measured("ended") as ended:
        subprocess.run([sys.executable, "-c", BUSY], check=True)
    with subprocess.Popen([sys.executable, "-c", BUSY + "print(flush=True)\ninput()"], stdin=-1, stdout=-1) as child:
        with measured("idle") as idle:
            assert child.stdout is not None
            child.stdout.readline()
        with measured("over") as over:
            child.communicate(b"\n")
    assert 0.25 < ended.cpu_s < 1.0
    assert 0.2 < idle.cpu_s < 1.0
    assert over.cpu_s < 0.2, "what a child used before is not counted when it ends"


def test_peak_memory_is_of_the_step_alone() -> None:
    with measured("large") as large:
        block = np.ones(30_000_000)
        time.sleep(0.01)
        del block
    with measured("small") as small:
        time.sleep(0.01)
    assert large.peak_mb - small.peak_mb > 150
    assert small.wall_s >= 0.01


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not tell")
def test_a_process_knows_when_it_was_started() -> None:
    program = (
        "import time; time.sleep(1.5); from showerstack.runtime.processes import process_began; print(process_began())"
    )
    before = time.time()
    result = float(subprocess.check_output([sys.executable, "-c", program], text=True))
    assert before - 0.1 <= result < before + 1.4  # a tick of the clock is a hundredth of a second


def test_where_the_system_does_not_tell_it_is_now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(processes.time, "CLOCK_BOOTTIME")
    before = time.time()
    assert before <= processes.process_began() <= time.time()


def test_the_pace_is_that_of_the_last_work(tmp_path: Path) -> None:
    file, pace = tmp_path / "schedstat", Pace()
    assert pace.read(file) == 1.0, "where the system does not tell"
    for worked_s, waited_s, expected in ((2, 1, 1.5), (2.5, 100, 1.5), (4, 13, 7.0), (6, 13, 1.0)):
        file.write_text(f"{worked_s * 10**9:.0f} {waited_s * 10**9:.0f} 12\n")
        assert pace.read(file) == expected


def test_a_deadline_comes_earlier_on_a_busy_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(energy.time, "time", lambda: 1000.0)
    for waits, left_s in ((1.0, 50.0), (2.0, 20.0), (10.0, -4.0)):
        monkeypatch.setattr(energy.PACE, "read", lambda waits=waits: waits)
        assert Deadline(1060.0).before(7.0).before(3.0).left_s() == left_s
        assert reached(Deadline(1060.0, 10.0)) == (left_s < 0)
        assert reached(Deadline(1060.0, 10.0), 30.0) == (left_s < 30)
    assert not reached(None, 1e9)
