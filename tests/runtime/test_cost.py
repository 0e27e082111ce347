"""Costs are those of the work, wherever it is done; a process began when it was started, not when it is asked."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from showerstack.runtime import cost, processes
from showerstack.runtime.cost import Deadline, Pace, is_over, timed

BUSY = "import time\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass\n"


def test_cpu_time_of_ended_and_of_living_children_counts_once() -> None:
    with timed("ended") as ended:
        subprocess.run([sys.executable, "-c", BUSY], check=True)
    with subprocess.Popen([sys.executable, "-c", BUSY + "print(flush=True)\ninput()"], stdin=-1, stdout=-1) as child:
        with timed("idle") as idle:
            assert child.stdout is not None
            child.stdout.readline()
        with timed("over") as over:
            child.communicate(b"\n")
    assert 0.25 < ended.cpu_s < 1.0
    assert 0.2 < idle.cpu_s < 1.0
    assert over.cpu_s < 0.2, "what a child used before is not counted when it ends"


def test_peak_memory_is_of_the_step_alone() -> None:
    with timed("large") as large:
        block = np.ones(30_000_000)
        time.sleep(0.01)
        del block
    with timed("small") as small:
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
    monkeypatch.setattr(cost.time, "time", lambda: 1000.0)
    for waits, left_s in ((1.0, 60.0), (2.0, 30.0), (10.0, 6.0)):
        monkeypatch.setattr(cost.PACE, "read", lambda waits=waits: waits)
        assert Deadline(1060.0).left_s() == left_s
        assert not is_over(Deadline(1060.0))
        assert is_over(Deadline(1060.0), 25.0) == (left_s < 25)
    assert is_over(Deadline(999.0))
    assert not is_over(None, 1e9)
