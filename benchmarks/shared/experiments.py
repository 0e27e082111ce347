"""Experiments that are kept one by one, so that a benchmark of hours can be ended and started again."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any


class Experiments:
    """What was found by experiments, a line of JSON each, written as soon as it is done."""

    def __init__(self, file: Path, minutes: float) -> None:
        """Read what is there; none is begun after so many minutes."""
        self.file, self.minutes, self.stop = file, minutes, time.monotonic() + 60 * minutes
        file.parent.mkdir(parents=True, exist_ok=True)
        self.done: list[dict[str, Any]] = (
            [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] if file.exists() else []
        )

    def missing(self, wanted: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """Return those of the experiments, each told by some of its entries, that are not done; none if time is up."""
        names = [one for one in wanted if not any(one.items() <= entry.items() for entry in self.done)]
        return names if time.monotonic() < self.stop else []

    def each(self, wanted: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
        """Yield what is still to be done, as long as there is time."""
        for one in self.missing(wanted):
            if time.monotonic() > self.stop:
                print(f"stopped after {self.minutes:g} minutes: start again to go on")
                return
            yield one

    def keep(self, entry: Mapping[str, Any]) -> None:
        """Keep what an experiment found."""
        self.done.append(dict(entry))
        with self.file.open("a", encoding="utf-8") as out:
            out.write(json.dumps(entry) + "\n")


def add_minutes(parser: argparse.ArgumentParser) -> None:
    """Give a benchmark an option for how long it may take."""
    parser.add_argument("--minutes", type=float, default=1e9, help="stop after this time; start again to go on")
