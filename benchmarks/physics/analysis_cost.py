"""What ``datacheck`` and ``spectra`` cost by the number of measured events: processor time and memory of one process.

    python benchmarks/physics/analysis_cost.py --work bench/cost --run RUN --data TEST_SET --sizes 100000 400000

writes the first events of a simulated set without labels, computes their features and starts the two commands, each in
a process of its own, with one worker. The law is a straight line through two sizes or more: a start, and a cost for
each event. Printed with it is what 5 million events cost by that line, and by the events' cost with its error from
repetitions (``--repeat``).
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from benchmarks.physics.damaged import damaged
from benchmarks.speed.scale import measure_command
from runtime.files import read_json, write_json

STEPS = ("features", "datacheck", "spectra")
ASKED = 5_000_000


def commands(run: Path, data: Path, out: Path, simulation: Path | None) -> dict[str, list[str]]:
    """Return the commands by step."""
    given = [] if simulation is None else ["--simulation", simulation]
    made = {
        "features": ["features", data, "--workers", 1],
        "datacheck": ["datacheck", "--run", run, "--data", data, "--out", out / "check.html", "--workers", 1,
                      "--trusted"],
        "spectra": ["spectra", "--run", run, "--data", data, "--out", out / "spectra", "--exposure", "1e9", *given,
                    "--zenith-max", "30", "--trusted"],
    }  # fmt: skip
    return {step: [str(part) for part in command] for step, command in made.items()}


def main() -> None:
    """Measure what is missing and print all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--run", type=Path, required=True, help="finished composition run")
    parser.add_argument("--data", type=Path, required=True, help="simulated set; its first events are measured")
    parser.add_argument("--simulation", type=Path, help="for the response; default: the run's held-out events")
    parser.add_argument("--sizes", type=int, nargs="+", default=[100_000, 400_000])
    parser.add_argument("--repeat", type=int, default=1)
    given = parser.parse_args()
    work = given.work.absolute()
    work.mkdir(parents=True, exist_ok=True)
    file = work / "cost.json"
    costs: dict[str, dict[str, float]] = read_json(file) if file.exists() else {}
    for n in given.sizes:
        data = work / f"measured-{n}"
        if not data.exists():
            damaged(given.data, data, "fresh", rows=np.arange(n))
        for number in range(given.repeat):
            out = work / f"out-{n}-{number}"
            for step, command in commands(given.run.absolute(), data, out, given.simulation).items():
                key = f"{n} {step} {number}"
                if key in costs or (step == "features" and number):
                    continue
                out.mkdir(exist_ok=True)
                allowed = (0, 1) if step == "datacheck" else (0,)  # 1: an alarm
                costs[key] = measure_command(step, command, work / "log.txt", allowed=allowed)
                write_json(file, costs)
    for step in STEPS:
        rows = [(int(key.split()[0]), cost) for key, cost in costs.items() if key.split()[1] == step]
        for n, cost in rows:
            print(f"{step}, {n:,} events: {cost['cpu_s']:.0f} s of processor time, {cost['peak_gb']:.2f} GB")
        sizes, seconds = np.array([n for n, _ in rows]), np.array([cost["cpu_s"] for _, cost in rows])
        if len(set(sizes)) > 1:
            slope, start = np.polyfit(sizes, seconds, 1)
            print(
                f"{step}: {start:.0f} s + {1e6 * slope:.0f} us an event; {ASKED:,} events: "
                f"{(start + ASKED * slope) / 60:.1f} min of one core"
            )


if __name__ == "__main__":
    main()
