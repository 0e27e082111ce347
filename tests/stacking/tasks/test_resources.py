"""Costs are those of the work, wherever it is done."""

from __future__ import annotations

import subprocess
import sys
import time

import numpy as np

from runtime.cost import measured

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
