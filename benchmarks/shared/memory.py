"""The largest memory of a process and all that it has started, together."""

from __future__ import annotations

import threading
from pathlib import Path


class FamilyMemory:
    """The largest memory of a process and its descendants together, sampled until :meth:`stop`.

    Memory that several of them share is counted once, mapped files included (Linux's proportional set size).
    """

    def __init__(self, process: int, every_s: float = 0.1) -> None:
        self._every_s = every_s
        self.peak, self._process, self._over = 0, process, threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()

    def stop(self) -> int:
        """Return the peak in bytes."""
        self._over.set()
        self._thread.join()
        return self.peak

    def _sample(self) -> None:
        while not self._over.wait(self._every_s):
            self.peak = max(self.peak, sum(map(_own_bytes, _family(self._process))))


def _family(process: int) -> list[int]:
    parents = {}
    for file in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = file.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents[int(file.parent.name)] = int(fields[1])
    result, waiting = [], [process]
    while waiting:
        one = waiting.pop()
        result.append(one)
        waiting += [child for child, parent in parents.items() if parent == one]
    return result


def _own_bytes(process: int) -> int:
    """Return a process's proportional share of memory; mapped files that several read count once in all."""
    try:
        for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except OSError:
        return 0
    return 0
