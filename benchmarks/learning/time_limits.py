"""How well a time limit is kept, and how much of it is used.

    python -m benchmarks.learning.time_limits --work bench/time_limits --limits 20

Each run of ``stack --preset good`` has a limit that is drawn evenly in its logarithm; beside every second run another
process keeps a core busy. A limit is kept if the command ends within 105 % of it. It has work left if learners were
left out or ended early: then 70 % of it should have been used. Finished runs are not done again.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.learning.stack import markdown
from benchmarks.shared.results import HELP, store
from benchmarks.shared.samples import sample
from showerstack.runtime.context import bar
from showerstack.runtime.files import read_json, write_json
from showerstack.showers.schema import TASKS

KEPT, USED = 1.05, 0.7
"""Shares of a limit: what a run may take, and what it should use where work is left."""


@contextmanager
def busy_core(wanted: bool) -> Iterator[None]:
    """Keep a core busy with something else."""
    if not wanted:
        yield
        return
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as other:
        try:
            yield
        finally:
            other.kill()


def outcome(data: Path, task: str, run: Path, limit_s: int, busy: bool) -> dict[str, Any]:
    """Train one run under a limit and return what it took and what was left to do."""
    words = ["--task", task, "--data", data, "--run", run, "--preset", "good", "--quiet"]
    command = [sys.executable, "-m", "showerstack", "stack", *map(str, words), "--time-limit", f"{limit_s}s"]
    began = time.monotonic()
    with busy_core(busy):
        subprocess.run(command, check=True)
    took = time.monotonic() - began
    manifest = read_json(run / "manifest.json")
    early = [line for line in manifest["remarks"] if line.startswith("the time limit ended fits of ")]
    ended = early[0].split(" of ", 1)[1].split(" early", 1)[0].split(", ") if early else []
    left_out = [row["name"] for row in manifest["learners"] if row["status"] != "ok"]
    return {"limit_s": limit_s, "busy": busy, "took_s": took, "ended_early": ended, "left_out": left_out}


def main() -> None:
    """Run under every limit and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path("bench/time_limits"), help="folder for data and runs")
    parser.add_argument("--limits", type=int, default=20, help="how many are drawn")
    parser.add_argument("--between", type=int, nargs=2, default=(120, 1200), metavar=("LEAST", "MOST"), help="seconds")
    parser.add_argument("--task", choices=("composition", "gamma"), default="composition")
    parser.add_argument("--train", type=int, default=150_000, help="training showers under the test's cuts")
    parser.add_argument("--test", type=int, default=20_000, help="test showers")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--store", action="store_true", help=HELP)
    given = parser.parse_args()
    work = given.work.absolute()
    data = sample(TASKS[given.task], work, n_train=given.train, n_test=given.test, seed=given.seed, bars=bar)
    limits = np.exp(np.random.default_rng(given.seed).uniform(*np.log(given.between), given.limits)).astype(int)
    rows, kept, used = [], [], []
    for number, limit_s in enumerate(map(int, limits)):
        run, file = work / f"run-{number}-{limit_s}s", work / f"{number}-{limit_s}s.json"
        if not file.exists():
            shutil.rmtree(run, ignore_errors=True)
            write_json(file, outcome(data, given.task, run, limit_s, busy=number % 2 == 1))
        one = read_json(file)
        share, left = one["took_s"] / limit_s, [*one["ended_early"], *one["left_out"]]
        kept.append(share <= KEPT)
        used += [share] if left else []
        beside, early, out = "yes" if one["busy"] else "no", ", ".join(one["ended_early"]), ", ".join(one["left_out"])
        rows.append([str(limit_s), beside, f"{100 * share:.0f} %", early or "none", out or "none"])
        print(*rows[-1], sep="; ", flush=True)
    text = markdown(["limit, s", "a core busy", "taken", "ended early", "left out"], rows)
    text += f"\n\n{sum(kept)} of {len(kept)} limits were kept within {100 * KEPT:.0f} %. "
    text += f"Of {len(used)} with work left, {sum(share >= USED for share in used)} used {100 * USED:.0f} % or more."
    print(text)
    if given.store:
        store("time_limits", "Time limits", text, pretrained=True)


if __name__ == "__main__":
    main()
