"""When this process was started."""

from __future__ import annotations

import os
import time
from pathlib import Path


def process_began() -> float:
    """Return when this process was started, in seconds since 1970; the present where the system does not tell.

    Linux has it in /proc/self/stat, field 22 (proc(5)): clock ticks from the start of the machine to that of the
    process.
    """
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError, IndexError, ValueError):
        return time.time()
    return time.time() - max(0.0, age)
