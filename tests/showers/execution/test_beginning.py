"""When a process began: from its start, not from when it is asked."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from runtime import processes


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not tell")
def test_a_process_knows_when_it_was_started() -> None:
    program = "import time; time.sleep(1.5); from runtime.processes import process_began; print(process_began())"
    before = time.time()
    found = float(subprocess.check_output([sys.executable, "-c", program], text=True))
    assert before - 0.1 <= found < before + 1.4  # a tick of the clock is a hundredth of a second


def test_where_the_system_does_not_tell_it_is_now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(processes.time, "CLOCK_BOOTTIME")
    before = time.time()
    assert before <= processes.process_began() <= time.time()
