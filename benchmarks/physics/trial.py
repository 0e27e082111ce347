"""What does somebody find who types the trial of docs/physics/spectra.md? The same commands, for many skies.

``python -m benchmarks.physics.trial --work bench/trial`` runs the page's commands as they stand there. Then it
simulates, converts and analyses the measured runs again with other seeds, written under the test's cuts, which are
looser than those of the analysis; training, simulated set and its predictions are kept. Every sky is kept in
``WORK/skies.jsonl`` as soon as it is done: started again, the benchmark goes on. It prints how often shares are
determined, lie outside 0 to 100 %, and hold the truth.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from benchmarks.physics.pseudo_experiments import mean_fluxes
from benchmarks.shared.experiments import Experiments, add_minutes
from benchmarks.shared.results import HELP, ROOT, store
from showerstack.analysis.options import SpectraOptions
from showerstack.analysis.spectra.fluxes import covariance_of_sums, share_covariance, shares
from showerstack.analysis.spectra.response import ALL, FIVE
from showerstack.analysis.spectra.result import KNOWN_SOURCES, Spectra
from showerstack.analysis.spectra.run import PREDICTIONS_FOLDER, measure_spectra
from showerstack.runtime.context import Context, bar
from showerstack.scoring.metrics.intervals import clopper_pearson
from showerstack.showers.simulation.sky import load_sky

PAGE = ROOT / "docs" / "physics" / "spectra.md"
SKY_FILE, CUT_SKY_FILE, FIRST_SEED = "fluxes.toml", "cut.toml", 1
OUTSIDE = (1.0, 2.0)
"""By how many errors a share lies outside 0 to 100 %."""


def commands_of(page: Path) -> list[str]:
    """Return the lines of the page's console block that simulates, trains and measures."""
    for block in re.findall(r"```console\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
        lines = [line.removeprefix("$ ") for line in block.replace("\\\n", " ").splitlines() if line]
        if any("--task measured" in line for line in lines) and any(" stack " in line for line in lines):
            return lines
    raise SystemExit(f"{page}: no block of commands for a trial")


def type_in(line: str, work: Path, log: Path) -> None:
    """Run a line of the page in a folder, whose ``python cli.py`` is this checkout's; end where it fails."""
    line = re.sub(
        r"^python cli\.py", lambda _: f"{shlex.quote(sys.executable)} {shlex.quote(str(ROOT / 'cli.py'))}", line
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with log.open("a", encoding="utf-8") as out:
        print(line, file=out, flush=True)
        if subprocess.run(line, shell=True, cwd=work, stdout=out, stderr=out, env=environment, check=False).returncode:
            raise SystemExit(f"{line}: failed, see {log}")


def first_sky(work: Path, log: Path) -> None:
    """Type the page's lines that were not typed before."""
    typed = work / "typed.txt"
    done = typed.read_text(encoding="utf-8").splitlines() if typed.exists() else []
    for line in commands_of(PAGE):
        if line not in done:
            type_in(line, work, log)
            with typed.open("a", encoding="utf-8") as out:
                out.write(f"{line}\n")


def measured_sky(work: Path, seed: int, log: Path) -> Spectra:
    """Simulate, convert and analyse the runs of another seed as the page does."""
    out = f"sky-{seed}"
    lines = commands_of(PAGE)
    spectra = next(shlex.split(line) for line in lines if " spectra " in line)
    value = dict(pairwise(spectra))
    (work / CUT_SKY_FILE).write_text(
        f'{(work / SKY_FILE).read_text(encoding="utf-8")}cuts = "test"\n', encoding="utf-8"
    )
    runs = work / (value["--data"] if seed == FIRST_SEED else f"{out}/measured")
    if not runs.exists():
        for line in lines:
            if "--task measured" in line or "--measured" in line:
                again = re.sub(r"\btrial\b", out, line).replace(SKY_FILE, CUT_SKY_FILE)
                type_in(f"{again} --seed {seed}" if "--task measured" in line else again, work, log)
    results = work / value["--out"]
    if seed != FIRST_SEED:
        kept, results = results / PREDICTIONS_FOLDER, work / out / "spectra"
        shutil.copytree(kept, results / PREDICTIONS_FOLDER, dirs_exist_ok=True)
    options = SpectraOptions(work / value["--run"], [runs], out=results, simulation=[work / value["--simulation"]])
    return measure_spectra(options, Context(bars=bar))


def entry_of(spectra: Spectra, true: np.ndarray, seed: int) -> dict[str, Any]:
    """Return what was found of shares, with all errors that are known, beside the truth."""
    covariance = share_covariance(spectra.fluxes.flux, spectra.covariance(KNOWN_SOURCES))
    found, truth, rows = shares(spectra.fluxes.flux), shares(true), []
    for name, groups in FIVE.members.items():
        if name == ALL:
            continue
        each = np.tile(groups, (len(found), 1))
        error = np.sqrt(np.maximum(np.diag(covariance_of_sums(covariance, each)), 0.0))
        rows += [
            {"bin": int(j), "group": name, "share": float(found[j] @ groups), "error": float(error[j]),
             "truth": float(truth[j] @ groups)}
            for j in np.flatnonzero(spectra.determined[name])
        ]  # fmt: skip
    flux = spectra.fluxes.flux.sum(axis=1)
    error = np.sqrt(np.diag(covariance_of_sums(spectra.covariance(KNOWN_SOURCES), np.ones_like(true))))
    every = [{"flux": f / t, "error": e / t} for f, e, t in zip(flux, error, true.sum(axis=1), strict=True)]
    return {
        "seed": seed, "events": int(spectra.measured.sum()), "p_value": spectra.p_value,
        "refused": spectra.fit.refusal, "shares": rows, "all": every, "bins": len(found),
    }  # fmt: skip


def tables(done: list[dict[str, Any]]) -> str:
    """Return what was found in all skies, as Markdown."""
    frame = pl.DataFrame([{"seed": one["seed"], **row} for one in done for row in one["shares"]])
    frame = frame.with_columns(
        pull=(pl.col("share") - pl.col("truth")) / pl.col("error"),
        outside=pl.max_horizontal(-pl.col("share"), pl.col("share") - 1) / pl.col("error"),
    )
    lines = [
        f"{len(done)} skies of {np.mean([one['events'] for one in done]):,.0f} events in the mean; "
        f"{sum(bool(one['refused']) for one in done)} fits refused, smallest p-value "
        f"{min(one['p_value'] for one in done):.2g}. Shares that are determined, with the errors of events, simulation",
        "and scales:",
        "",
        "| group | determined | true share, % | mean error, % | in 68 % | in 95 % | largest pull | lowest | highest |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    bins = sum(one["bins"] for one in done)
    for group in FIVE.members:
        mine = frame.filter(pl.col("group") == group)
        if mine.height:
            pulls = mine["pull"].abs().to_numpy()
            numbers = [f"{100 * float(mine[name].mean()):.0f}" for name in ("truth", "error")]  # type: ignore[arg-type]
            held = [f"{(pulls < z).sum()} of {len(pulls)}" for z in (1.0, 1.96)]
            found = mine["share"].to_numpy()
            ends = [f"{pulls.max():.1f}", f"{100 * found.min():.0f}", f"{100 * found.max():.0f}"]
            lines.append(f"| {' | '.join([group, f'{mine.height} of {bins}', *numbers, *held, *ends])} |")
    lines.append("")
    for many in OUTSIDE:
        skies = len(done) - frame.filter(pl.col("outside") > many)["seed"].n_unique()
        at = clopper_pearson(skies, len(done))
        words = "its error" if many == 1 else f"{many:g} errors"
        lines.append(
            f"No share lies outside 0 to 100 % by more than {words} in {skies} of {len(done)} skies "
            f"[{100 * at.low:.0f}, {100 * at.high:.0f}] %."
        )
    pulls = np.array([(row["flux"] - 1) / row["error"] for one in done for row in one["all"]])
    lines.append(f"Fluxes of all particles: {(np.abs(pulls) < 1).sum()} of {len(pulls)} within their error.")
    return "\n".join(lines)


def main() -> None:
    """Do what is missing, as long as there is time, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path("bench/trial"))
    parser.add_argument("--skies", type=int, default=20, help="seeds of the measured runs")
    parser.add_argument("--store", action="store_true", help=HELP)
    add_minutes(parser)
    given = parser.parse_args()
    work = given.work.resolve()
    skies, log = Experiments(work / "skies.jsonl", given.minutes), work / "commands.log"
    first_sky(work, log)
    sky = load_sky(work / SKY_FILE)
    for one in skies.each({"seed": seed} for seed in range(FIRST_SEED, FIRST_SEED + given.skies)):
        spectra = measured_sky(work, one["seed"], log)
        skies.keep(entry_of(spectra, mean_fluxes(sky, spectra.fluxes.edges), one["seed"]))
    if skies.done:
        print(tables(skies.done))
        if given.store:
            store("trial", "What the trial of spectra finds", tables(skies.done))


if __name__ == "__main__":
    main()
