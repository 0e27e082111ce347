"""Whole commands of this checkout beside another one: processor time, wall-clock time, memory.

    python -m benchmarks.speed.commands --against ../other_checkout --rounds 5 --store
    python -m benchmarks.speed.commands --against ../other_checkout --rounds 2 --commands stack report

Each command is run by both checkouts in turn, on the same simulated showers without cuts; the first round compiles and
fills caches and does not count. Each checkout predicts with a run of its own that uses one network, reports a run of
its own with the preset ``quick``, and looks for photons and measures spectra with runs of two boosters. ``spectra`` is
run with nothing kept from before (at most twice: the simulated showers are simulated again with other sizes) and again
with the predictions that it kept. Python may write its bytecode, as it does for users. Printed are
medians with ranges, and the ratios of each pair: they count where other programs use the machine too. ``features``
makes the table of all columns, ``predict`` keeps no table. Memory is the largest of a command and its processes
together, sampled ten times a second, the pages of mapped files included. At last the table's bytes are compared for 1,
2 and 4 threads, and after a kill.

Stacks are trained at most twice by each; below them stands the log-loss of test showers by what ships, now minus
before, paired, of the last two runs. ``good`` has a training set without cuts and begins with the features.
``new-array`` makes the features of an array of 49 stations where only KASCADE's have been made before: each time
machine code lies in a new folder. ``clone`` makes features in a fresh clone, where the user has made some before.
``corsika`` throws 12 toy showers of 3 million particles, whole and thinned, onto KASCADE at ten places each; its bytes
are compared.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.shared.memory import FamilyMemory
from benchmarks.shared.results import HELP, store
from showerstack.scoring.metrics.losses import event_losses
from showerstack.showers.array import KASCADE, DetectorArray
from showerstack.showers.schema import COMPOSITION, GAMMA, MATRICES_FILE, SCALARS_FILE, SOURCE_FILE, Task
from showerstack.showers.simulation import simulate
from tests.showers.corsika_files import draw_shower, write_file

ROOT = Path(__file__).resolve().parents[2]
MANY, MILLION = 60_000, 1_000_000
FEW = 100
TRAINED = 8_000
LIVE_TIME_H = 2.0
"""Of the measured showers."""
ONE_NETWORK = """learners = ["pretrained"]
folds = 5
holdout = 0.3
[settings.pretrained]
epochs = 1
"""
"""Options of a run that uses one network: how long it learns makes predictions no slower."""
COMMANDS = (
    "features", "new-array", "clone", "doctor", "predict", "million", "stack", "good", "report", "verify",
    "gamma-limit", "spectra", "corsika", "simulate",
)  # fmt: skip
MOST_STACKS = 2
SIMULATED = 20_000
"""Simulated showers that spectra are unfolded with."""
SPACING_M = 20.0


class Pairs(NamedTuple):
    """A command that both checkouts run."""

    label: str
    measure: Callable[[int], CommandCost]
    """Runs it in one of the checkouts, by its number."""
    rounds: int
    warm: bool = True
    """Whether a first round does not count."""
    runs: Sequence[Path] = ()
    """Runs of both that are compared in log-loss, on test sets beside them."""


class CommandCost(NamedTuple):
    """What a command took, with its processes."""

    cpu_s: float
    wall_s: float
    peak_gb: float


def timed(root: Path, *arguments: object, program: str = "cli.py", code: Path | None = None) -> CommandCost:
    """Run a command of a checkout to its end, with its machine code in a folder; it must succeed."""
    environment = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1", "POLARS_MAX_THREADS": "1"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    environment |= {"NUMBA_CACHE_DIR": str(code)} if code else {}
    command = [sys.executable, str(root / program), *map(str, arguments)]
    began = time.perf_counter()
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(command, env=environment, cwd=root, stdout=subprocess.DEVNULL, stderr=errors)
        memory = FamilyMemory(process.pid)
        _, status, used = os.wait4(process.pid, 0)
        peak_gb = memory.stop() / 1e9
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            errors.seek(0)
            what = errors.read().decode(errors="replace")[-2000:]
            raise SystemExit(f"{' '.join(command)} ended with {process.returncode}: {what}")
    return CommandCost(used.ru_utime + used.ru_stime, time.perf_counter() - began, peak_gb)


def one_network(root: Path, folder: Path) -> Path:
    """Train a run of a checkout that uses one network; return its folder."""
    simulate(COMPOSITION, folder / "data", n_train=2_500, n_test=200, seed=5, train_cuts="test")
    (folder / "stack.toml").write_text(ONE_NETWORK, encoding="utf-8")
    stack(root, folder / "data", folder / "run", "--config", folder / "stack.toml")
    return folder / "run"


def stack(root: Path, data: Path, run: Path, *options: object, task: str = "composition") -> CommandCost:
    """Train a new run of a checkout."""
    shutil.rmtree(run, ignore_errors=True)
    return timed(
        root, "stack", "--task", task, "--data", data, "--run", run, "--workers", 1, "--device", "cpu", *options
    )


class MeasuredShowers(NamedTuple):
    """Measured showers, and runs of both checkouts that analyse them."""

    measured: Path
    simulated: Path
    runs: list[Path]

    @classmethod
    def prepared(cls, roots: tuple[Path, Path], folder: Path, task: Task, n_simulated: int) -> MeasuredShowers:
        """Return them, made in a new folder."""
        simulate(task, folder, n_train=TRAINED, n_test=n_simulated, seed=16, train_cuts="test")
        (folder / "fluxes.toml").write_text(f"live_time_h = {LIVE_TIME_H}\n", encoding="utf-8")
        timed(ROOT, "simulate", "--task", "measured", "--spectrum", folder / "fluxes.toml", "--out", folder)
        timed(ROOT, "convert", "--measured", folder / "measured_raw", "--out", folder, "--times")
        runs = [folder / f"run-{k}" for k in range(2)]
        for root, run in zip(roots, runs, strict=True):
            stack(root, folder, run, "--preset", "quick", "--learners", "lightgbm,xgboost", task=task.name)
        return cls(folder / "measured", folder / f"{task.name}_test", runs)

    def analyse(self, command: str, root: Path, k: int, out: Path, *, keep: bool = False) -> CommandCost:
        """Look for photons or measure spectra; ``keep`` what is of use for the next time."""
        cost = timed(root, command, "--run", self.runs[k], "--data", self.measured, "--simulation", self.simulated,
                     "--out", out)  # fmt: skip
        if not keep:
            shutil.rmtree(out)
        return cost


def repeated(data: Path, folder: Path, n_events: int) -> Path:
    """Write a dataset folder of so many events: those of ``data`` from the first on, again and again."""
    folder.mkdir()
    for name in (MATRICES_FILE, SCALARS_FILE):
        once = np.load(data / name, mmap_mode="r")
        written = np.lib.format.open_memmap(folder / name, "w+", once.dtype, (n_events, *once.shape[1:]))
        for start in range(0, n_events, len(once)):
            written[start : start + len(once)] = once[: n_events - start]
        written.flush()
    shutil.copyfile(data / SOURCE_FILE, folder / SOURCE_FILE)
    return folder


def features(root: Path, data: Path, out: Path, *options: object, code: Path | None = None) -> CommandCost:
    """Make a feature table and remove it again."""
    cost = timed(root, "features", data, "--out", out, "--device", "cpu", "--quiet", *options, code=code)
    shutil.rmtree(out)
    return cost


def square() -> DetectorArray:
    """Return 7 x 7 stations at KASCADE's altitude, with muon detectors."""
    y, x = np.mgrid[-3:4, -3:4] * SPACING_M
    area = np.full(x.shape, 2.0)
    return DetectorArray("49 stations", SPACING_M, x, y, area, area, np.zeros(x.shape, int), KASCADE.card)


def new_array(root: Path, known: Path, new: Path, out: Path) -> CommandCost:
    """Make the first features of an array, after those of KASCADE."""
    with tempfile.TemporaryDirectory(prefix="code-") as code:
        features(root, known, out, code=Path(code))
        return features(root, new, out, code=Path(code))


def in_a_clone(root: Path, data: Path, out: Path) -> CommandCost:
    """Make features in a new clone of a checkout."""
    with tempfile.TemporaryDirectory(prefix="clone-") as clone:
        subprocess.run(["git", "clone", "-q", str(root), clone], check=True)
        return features(Path(clone), data, out)


def particle_files(folder: Path, thin: float) -> Path:
    """Write a toy's showers into four of CORSIKA's files, about as many particles in each, whatever the thinning."""
    folder.mkdir()
    rng = np.random.default_rng(1)
    for k, mass in enumerate((1, 56, 1, 56), start=1):
        lg_energy = 6.6 + np.log10(thin) / 1.1
        showers = [draw_shower(rng, mass=mass, lg_energy_gev=lg_energy, thin=thin) for _ in range(3)]
        write_file(folder / f"DAT00000{k}", showers, thinned=thin > 1)
    return folder


def thrown(roots: Sequence[Path], files: Path, array: Path, outs: Sequence[Path], k: int) -> CommandCost:
    """Throw showers onto the array of a dataset folder by one of the checkouts."""
    shutil.rmtree(outs[k], ignore_errors=True)
    return timed(roots[k], "convert", files, "--array", array, "--out", outs[k])


def log_losses(before: Path, now: Path, test: Path) -> str:
    """Return the log-loss of a run on a test set minus that of another, paired."""
    labels = np.load(test / COMPOSITION.label_file)
    losses = []
    for run in (before, now):
        with np.load(run / "predictions.npz") as stored:
            losses.append(event_losses(stored["log_proba"], labels))
    gap = losses[1] - losses[0]
    return f"{gap.mean():+.5f} ± {gap.std(ddof=1) / len(gap) ** 0.5:.5f} ({losses[0].mean():.4f} before)"


def predict(root: Path, run: Path, data: Path, out: Path) -> CommandCost:
    """Predict with a run of a checkout; the file is removed again."""
    cost = timed(
        root, "predict", "--run", run, "--data", data, "--out", out, "--no-table", "--device", "cpu", "--quiet"
    )
    out.unlink()
    return cost


def digest_of(table: Path) -> str:
    """Return a hash of all shards of a feature table."""
    digest = hashlib.sha256()
    for file in sorted(table.glob("part-*.parquet")):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def same_bytes(data: Path, scratch: Path) -> str:
    """Return the hashes of a table made by 1, 2 and 4 threads, and by two that were killed after the first shard."""
    digests = {}
    for workers in (1, 2, 4):
        timed(ROOT, "features", data, "--out", scratch / f"{workers}", "--workers", workers, "--quiet")
        digests[f"{workers} threads"] = digest_of(scratch / f"{workers}")
    killed = scratch / "killed"
    command = [sys.executable, str(ROOT / "cli.py"), "features", str(data), "--out", str(killed), "--workers", "2"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        while process.poll() is None and not list(killed.glob("part-*.parquet")):
            time.sleep(0.01)
        process.kill()
    found = len(list(killed.glob("part-*.parquet")))
    timed(ROOT, "features", data, "--out", killed, "--workers", 2, "--quiet")
    digests[f"killed with {found} shards"] = digest_of(killed)
    return ", ".join(f"{name} {digest}" for name, digest in digests.items())


def ranged(values: list[float], digits: int) -> str:
    """Return a median and its range."""
    return f"{np.median(values):.{digits}f} ({min(values):.{digits}f}..{max(values):.{digits}f})"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", type=Path, required=True, help="another checkout")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--commands", nargs="+", choices=COMMANDS, default=COMMANDS)
    parser.add_argument("--store", nargs="?", const="commands", metavar="NAME", help=f"{HELP}NAME.md (commands)")
    options = parser.parse_args()
    roots = (options.against.resolve(), ROOT)
    lines = ["| command | | before (range) | now (range) | ratio (range) |", "|---|---|---|---|---|"]
    print("\n".join(lines), flush=True)
    with tempfile.TemporaryDirectory(prefix="commands-") as name:
        scratch = Path(name)
        made, _ = simulate(COMPOSITION, scratch / "data", n_train=MANY, n_test=FEW, seed=15)
        for one in work(options.commands, options.rounds, roots, made, scratch):
            rounds = [[one.measure(k) for k in range(2)] for _ in range(one.rounds + one.warm)][one.warm :]
            for number, (label, digits) in enumerate((("CPU s", 1), ("wall s", 1), ("peak GB", 2))):
                before, now = ([pair[k][number] for pair in rounds] for k in range(2))
                ratios = [b / a for a, b in zip(before, now, strict=True)]
                cells = (ranged(before, digits), ranged(now, digits), ranged(ratios, 2))
                lines.append(f"| {one.label if not number else ''} | {label} | {' | '.join(cells)} |")
                print(lines[-1], flush=True)
            if one.runs:
                gap = log_losses(one.runs[0], one.runs[1], one.runs[0].parent / f"{COMPOSITION.name}_test")
                lines.append(f"| | log-loss | | | {gap} |")
                print(lines[-1], flush=True)
        if "features" in options.commands:
            lines += ["", f"Bytes of the table of {MANY:,} showers: {same_bytes(scratch / 'many', scratch)}"]
            print(lines[-1])
    if options.store:
        store(options.store, "Whole commands", "\n".join([f"Before: commit {revision(roots[0])}.", "", *lines]))


def revision(root: Path) -> str:
    """Return the commit of a checkout."""
    return subprocess.run(
        ["git", "rev-parse", "--short=9", "HEAD"], cwd=root, capture_output=True, text=True, check=True
    ).stdout.strip()


def work(commands: Sequence[str], rounds: int, roots: tuple[Path, Path], made: Path, scratch: Path) -> Iterator[Pairs]:
    """Yield the commands; what they need is made before."""
    table, file = scratch / "table", scratch / "new.npz"
    sizes = {"many": MANY, "few": FEW} | ({"million": MILLION} if "million" in commands else {})
    sets = {name: repeated(made, scratch / name, n) for name, n in sizes.items()}
    if "features" in commands:
        yield Pairs(f"features, {FEW} showers", lambda k: features(roots[k], sets["few"], table), rounds)
        yield Pairs(
            f"features, {MANY:,} showers", lambda k: features(roots[k], sets["many"], table, "--workers", 1), rounds
        )
    if "new-array" in commands:
        own = scratch / "own"
        simulate(COMPOSITION, own, n_train=FEW, n_test=FEW, seed=15, array=square())
        train = own / f"{COMPOSITION.name}_train"
        label = f"first features of an array, {FEW} showers"
        yield Pairs(label, lambda k: new_array(roots[k], sets["few"], train, table), rounds, warm=False)
    if "clone" in commands:
        label = f"features, {FEW} showers, in a fresh clone"
        yield Pairs(label, lambda k: in_a_clone(roots[k], sets["few"], table), rounds)
    if "doctor" in commands:
        yield Pairs("doctor", lambda k: timed(roots[k], "doctor"), rounds)
    if {"predict", "million"} & set(commands):
        runs = [one_network(root, scratch / f"trained-{k}") for k, root in enumerate(roots)]
        if "predict" in commands:
            yield Pairs(f"predict, {FEW} showers", lambda k: predict(roots[k], runs[k], sets["few"], file), rounds)
            yield Pairs(f"predict, {MANY:,} showers", lambda k: predict(roots[k], runs[k], sets["many"], file), rounds)
        if "million" in commands:
            yield Pairs(
                f"features, {MILLION:,} showers", lambda k: features(roots[k], sets["million"], table), rounds, False
            )
            yield Pairs(
                f"predict, {MILLION:,} showers", lambda k: predict(roots[k], runs[k], sets["million"], file), rounds,
                False,
            )  # fmt: skip
    if {"stack", "report", "verify"} & set(commands):
        quick = scratch / "quick"
        simulate(COMPOSITION, quick, n_train=TRAINED, n_test=TRAINED, seed=17, train_cuts="test")
        trained = [quick / f"run-{k}" for k in range(2)]

        def train(k: int) -> CommandCost:
            return stack(roots[k], quick, trained[k], "--preset", "quick")

        if "stack" in commands:
            label = f"stack --preset quick, {TRAINED:,} showers"
            yield Pairs(label, train, min(rounds, MOST_STACKS), runs=trained)
        else:
            for k in range(2):
                train(k)
        if "report" in commands:
            yield Pairs("report", lambda k: timed(roots[k], "report", trained[k], "--data", quick), rounds)
        if "verify" in commands:
            yield Pairs(
                f"verify.py, {TRAINED:,} showers",
                lambda k: timed(roots[k], trained[k] / "predictions.npz", "--data", quick, program="verify.py"),
                rounds,
            )
    if "good" in commands:
        # Each checkout has a copy of the sets, since feature tables lie beside them.
        folders = [scratch / f"good-{k}" for k in range(2)]
        simulate(COMPOSITION, folders[0], n_train=MANY, n_test=MANY // 4, seed=18)
        shutil.copytree(folders[0], folders[1])

        def train_good(k: int) -> CommandCost:
            for table in folders[k].glob("*.features"):
                shutil.rmtree(table)
            return stack(roots[k], folders[k], folders[k] / "run", "--preset", "good")

        label = f"stack --preset good, {MANY:,} showers"
        runs = [folder / "run" for folder in folders]
        yield Pairs(label, train_good, min(rounds, MOST_STACKS), warm=False, runs=runs)
    if "simulate" in commands:
        options = ("--task", "composition", "--train", MILLION, "--test", FEW, "--workers", 1, "--overwrite")
        label = f"simulate, {MILLION:,} showers"
        yield Pairs(label, lambda k: timed(roots[k], "simulate", *options, "--out", scratch / "drawn"), rounds)
    if "corsika" in commands:
        for name, thin in (("whole", 1.0), ("thinned", 20.0)):
            files, outs = particle_files(scratch / name, thin), [scratch / f"{name}-{k}" for k in range(2)]
            label = (
                f"convert of 12 showers, {name}, {sum(file.stat().st_size for file in files.iterdir()) / 1e9:.2f} GB"
            )
            yield Pairs(label, partial(thrown, roots, files, sets["few"], outs), rounds)
            contents = [{file.name: file.read_bytes() for file in (out / name).iterdir()} for out in outs]
            print(f"the same bytes: {contents[0] == contents[1]}", flush=True)
    if "gamma-limit" in commands:
        photons = MeasuredShowers.prepared(roots, scratch / "photons", GAMMA, TRAINED)
        label = f"gamma-limit, {TRAINED:,} simulated"
        yield Pairs(label, lambda k: photons.analyse("gamma-limit", roots[k], k, scratch / "limit"), rounds)
    if "spectra" in commands:
        nuclei = MeasuredShowers.prepared(roots, scratch / "nuclei", COMPOSITION, SIMULATED)
        label = f"spectra, {SIMULATED:,} simulated"
        yield Pairs(label, lambda k: nuclei.analyse("spectra", roots[k], k, scratch / "new"), min(rounds, MOST_STACKS))
        kept = [scratch / f"kept-{k}" for k in range(2)]
        yield Pairs(f"{label}, again", lambda k: nuclei.analyse("spectra", roots[k], k, kept[k], keep=True), rounds)


if __name__ == "__main__":
    main()
