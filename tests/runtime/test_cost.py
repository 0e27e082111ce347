"""Costs are those of the work, wherever it is done; a process began when it was started, not when it is asked."""

from __future__ import annotations

import subprocess
import sys
import time

import numpy as np
import pytest

from showerstack.runtime import cost, processes
from showerstack.runtime.cost import Clock, now_s, timed

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


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not tell")
def test_a_process_knows_when_it_was_started() -> None:
    program = (
        "import time; time.sleep(1.5); from showerstack.runtime.processes import process_began; print(process_began())"
    )
    before = now_s()
    result = float(subprocess.check_output([sys.executable, "-c", program], text=True))
    assert before - 0.1 <= result < before + 1.4  # a tick of the clock is a hundredth of a second


def test_where_the_system_does_not_tell_it_is_now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(processes.time, "CLOCK_BOOTTIME")
    before = now_s()
    assert before <= processes.process_began() <= now_s()


def test_no_one_sets_the_clock_of_a_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    began = processes.process_began()
    monkeypatch.setattr(cost.time, "time", lambda: 0.0)
    assert processes.process_began() == began
    assert Clock.here().on_this_machine(5.0) == 5.0
    monkeypatch.setattr(cost.time, "time", lambda: 1e6 + now_s())
    assert Clock("another", 1e6 + 40).on_this_machine(100.0) == pytest.approx(140.0, abs=1e-3)
