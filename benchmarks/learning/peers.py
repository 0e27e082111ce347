"""Train any set of learners on the same simulated showers and compare them on the same test showers.

    python -m benchmarks.learning.peers --train 60000 --test 40000 --out peers
    python -m benchmarks.learning.peers --train 10000 --test 10000 --task gamma --learners lightgbm,mlp,lenet
    python -m benchmarks.learning.peers --train 8000 --test 20000 --learners mlp,pretrained,realmlp --reference mlp

Nothing is chosen on the test showers: their labels are read once, after all predictions are on disk. A killed run
continues where it stopped; each learner that is done is kept in ``OUT/results-.../{learner}-{seed}``, a folder named
after its showers, the preset and the version of the feature code. The table with 95 % intervals (after a plus-minus
sign: standard errors) and paired differences to a reference learner is printed and, with ``--store``, written to
``benchmarks/results/peers.md``. ``realmlp`` needs ``pip install pytabkit``.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks.learning.realmlp import PEER
from benchmarks.shared.results import HELP, store
from benchmarks.shared.samples import sample
from showerstack.features.build import build_table
from showerstack.features.table import default_path
from showerstack.models.base.learner import Batch
from showerstack.models.base.spec import LearnerSpec
from showerstack.models.registry import LEARNERS, create, spec
from showerstack.runtime.context import Context, bar
from showerstack.runtime.errors import InputError
from showerstack.runtime.files import atomic_folder, read_json, write_json, write_npz
from showerstack.runtime.processes import in_processes
from showerstack.runtime.versions import FEATURES_VERSION
from showerstack.scoring.metrics.intervals import clopper_pearson
from showerstack.scoring.metrics.losses import event_losses
from showerstack.scoring.metrics.paired import paired_log_loss, paired_mean
from showerstack.scoring.tasks import metric_for
from showerstack.showers.dataset import Dataset
from showerstack.showers.schema import GAMMA, SOURCE_FILE, TASKS, Task
from showerstack.stacking.events import ShowerEvents

VALID_SHARE = 0.1
"""Share of the training events that serves early stopping."""
REFERENCE = "lenet"
INTRODUCTION = """\
Every learner on the same simulated showers under the test's cuts, with the settings below; nothing was chosen on the
test showers. Brackets: 95 % intervals; ±: one standard error; differences are paired. What the learners are:
`python cli.py learners`. Systems called `published.*` are trained here, on these showers."""


@dataclass(frozen=True)
class Training:
    """One learner to be trained."""

    task: str
    learner: str
    seed: int
    preset: str
    data: Path
    results: Path
    threads: int

    @property
    def folder(self) -> Path:
        """Where its result is kept."""
        return self.results / f"{self.learner}-{self.seed}"

    @property
    def done(self) -> bool:
        """Whether it was trained before."""
        return (self.folder / "result.json").exists()


@dataclass(frozen=True)
class Result:
    """What is known about one trained learner."""

    learner: str
    seed: int
    parameters: int | None
    columns: int
    train_wall_s: float
    train_cpu_s: float
    predict_events_per_s: float


def events(data: Path, task: Task, split: str, *, labelled: bool) -> ShowerEvents:
    """Return the events of a split."""
    folder = data / f"{task.name}_{split}"
    return ShowerEvents(folder, default_path(folder), task, labelled=labelled)


def training_batches(job: Training) -> tuple[Batch, Batch]:
    """Return training and early-stopping events; the same for every learner and seed."""
    task, entry = TASKS[job.task], _entry(job.learner)
    source = events(job.data, task, "train", labelled=True)
    order = np.random.default_rng(0).permutation(len(source))
    n_valid = max(1, round(VALID_SHARE * len(source)))
    labels, columns = source.known().labels, source.columns_for(entry)
    parts = (np.sort(order[n_valid:]), np.sort(order[:n_valid]))
    batches = [source.batch(rows, columns, grids=entry.needs_grid) for rows in parts]
    first, second = (replace(batch, labels=labels[rows]) for batch, rows in zip(batches, parts, strict=True))
    return first, second


def do(job: Training) -> str:
    """Train, predict, save; return a line that says how it went."""
    if job.done:
        return f"{job.task} {job.learner}: done before"
    entry, task = _entry(job.learner), TASKS[job.task]
    train, valid = training_batches(job)
    learner = create(entry, task.classes, threads=job.threads, preset=job.preset)
    learner.checkpoint = job.results / "checkpoints" / f"{job.learner}-{job.seed}"
    wall, cpu = time.perf_counter(), time.process_time()
    learner.fit(train, valid, seed=job.seed)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    test = events(job.data, task, "test", labelled=False)
    batch = test.batch(np.arange(len(test)), test.columns_for(entry), grids=entry.needs_grid)
    started = time.perf_counter()
    log_proba = learner.predict_log_proba(batch)
    speed = len(batch) / (time.perf_counter() - started)
    result = Result(job.learner, job.seed, learner.n_parameters, len(test.columns_for(entry)), wall, cpu, speed)
    with atomic_folder(job.folder) as folder:
        write_npz(folder / "test.npz", log_proba=log_proba)
        write_json(folder / "result.json", asdict(result))
    shutil.rmtree(learner.checkpoint, ignore_errors=True)
    return f"{job.task} {job.learner} (seed {job.seed}): {wall:,.0f} s"


def attempt(job: Training) -> str:
    """Do a job; an error is told and leaves the others alone."""
    try:
        return do(job)
    except Exception as error:
        return f"{job.task} {job.learner}: FAILED, {type(error).__name__}: {error}"


def output_of(log_proba: np.ndarray, task: Task) -> np.ndarray:
    """Return what the task's metric judges: hard labels, or the logit of the first class."""
    return log_proba[:, 0] - log_proba[:, 1] if task is GAMMA else log_proba.argmax(axis=1)


def table(jobs: Sequence[Training], task: Task, reference: str) -> list[str]:
    """Return the comparison as lines of Markdown, best log-loss first."""
    done = [job for job in jobs if job.done]
    labels = np.asarray(Dataset.open(jobs[0].data / f"{task.name}_test", task).labels, dtype=np.int64)
    metric = metric_for(task)
    bases = {job.seed: predictions(job) for job in done if job.learner == reference}
    rows = []
    for job in done:
        log_proba = predictions(job)
        loss = float(event_losses(log_proba, labels).mean())
        rows.append((loss, _row(job, log_proba, labels, bases.get(job.seed))))
    head = [
        "learner", "accuracy %", "log-loss", metric.name, f"log-loss - {reference}", f"{metric.name} - {reference}",
        "weights", "columns", "training s (CPU)", "events/s",
    ]  # fmt: skip
    lines = [f"## {task.name}", "", f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    return lines + [row for _, row in sorted(rows)] + [""]


def predictions(job: Training) -> np.ndarray:
    """Return a finished job's (N, C) test log-probabilities."""
    with np.load(job.folder / "test.npz", allow_pickle=False) as content:
        return np.asarray(content["log_proba"])


def _row(job: Training, log_proba: np.ndarray, labels: np.ndarray, base: np.ndarray | None) -> str:
    task, result = TASKS[job.task], Result(**read_json(job.folder / "result.json"))
    metric, output = metric_for(task), output_of(log_proba, task)
    hard = log_proba.argmax(axis=1)
    accuracy = clopper_pearson(int((hard == labels).sum()), len(labels))
    each = event_losses(log_proba, labels)
    loss, values = paired_mean(each), metric.interval(labels, output)
    digits = ".1e" if task is GAMMA else ".4f"
    cells = [
        job.learner + (f" (seed {job.seed})" if job.seed != 1 else ""),
        f"{100 * np.mean(hard == labels):.2f} [{100 * accuracy.low:.2f}, {100 * accuracy.high:.2f}]",
        f"{loss.difference:.4f} ± {loss.standard_error:.4f}",
        f"{metric.value(labels, output):{digits}} [{values.low:{digits}}, {values.high:{digits}}]",
    ]
    if base is None:
        cells += ["", ""]
    else:
        gap = paired_log_loss(labels, log_proba, base)
        metric_gap = metric.paired(labels, output, output_of(base, task))
        low, high = metric_gap.interval.low, metric_gap.interval.high
        cells += [
            f"{gap.difference:+.4f} ± {gap.standard_error:.4f}",
            f"{metric_gap.difference:+{digits}} [{low:+{digits}}, {high:+{digits}}]",
        ]
    weights = "" if result.parameters is None else f"{result.parameters:,}"
    cells += [weights, str(result.columns), f"{result.train_wall_s:,.0f} ({result.train_cpu_s:,.0f})"]
    return f"| {' | '.join([*cells, f'{result.predict_events_per_s:,.0f}'])} |"


def over_seeds(jobs: Sequence[Training], task: Task, reference: str) -> list[str]:
    """Return paired differences in log-loss averaged over seeds, as lines of Markdown; none with a single seed.

    Test events and training seeds both scatter: the first error is that of the mean over events of the events' mean
    difference over seeds, the second that of the mean over seeds (nothing is assumed about how the two combine).
    """
    done = [job for job in jobs if job.done]
    labels = np.asarray(Dataset.open(jobs[0].data / f"{task.name}_test", task).labels, dtype=np.int64)
    losses = {(job.learner, job.seed): event_losses(predictions(job), labels) for job in done}
    rows = []
    for name in sorted({job.learner for job in done} - {reference}):
        seeds = [seed for learner, seed in losses if learner == name and (reference, seed) in losses]
        if len(seeds) < 2:
            continue
        gaps = np.stack([losses[name, seed] - losses[reference, seed] for seed in seeds])
        of_events, of_seeds = paired_mean(gaps.mean(axis=0)), gaps.mean(axis=1)
        each = ", ".join(f"{gap:+.4f}" for gap in of_seeds)
        error = of_seeds.std(ddof=1) / np.sqrt(len(seeds))
        rows.append(f"| {name} | {of_events.difference:+.4f} | {of_events.standard_error:.4f} | {error:.4f} | {each} |")
    if not rows:
        return []
    head = f"| learner | log-loss - {reference}, mean over seeds | error (events) | error (seeds) | each seed |"
    return [f"### {task.name}, over seeds", "", head, "|---|---|---|---|---|", *rows, ""]


def prepare(arguments: argparse.Namespace, task: Task) -> Path:
    """Simulate what is missing and build feature tables; return the data folder."""
    data = sample(
        task, arguments.out, n_train=arguments.train, n_test=arguments.test, seed=arguments.data_seed,
        workers=arguments.workers, bars=bar,
    )  # fmt: skip
    for split in ("train", "test"):
        build_table(data / f"{task.name}_{split}", ctx=Context(device="cpu", workers=arguments.workers, bars=bar))
    return data


def jobs_of(arguments: argparse.Namespace, task: Task, data: Path) -> list[Training]:
    """Return all trainings of a task; their folder is named after all that defines showers, features and settings."""
    results = arguments.out / f"results-{data.name}-{arguments.preset}-{FEATURES_VERSION}"
    return [
        Training(task.name, name, seed, arguments.preset, data, results, arguments.threads)
        for seed in range(1, arguments.seeds + 1)
        for name in chosen_learners(arguments.learners, task)
    ]


def chosen_learners(names: str | None, task: Task) -> list[str]:
    """Return the learners to compare that serve a task."""
    wanted = names.split(",") if names else list(LEARNERS)
    return [name for name in wanted if not _entry(name).tasks or task.name in _entry(name).tasks]


def _entry(name: str) -> LearnerSpec:
    return PEER if name == PEER.name else spec(name)


def train_all(jobs: Sequence[Training], workers: int) -> None:
    """Train what is not yet trained, several at a time."""
    with bar("training", "learners") as progress:
        lines = in_processes(attempt, [(job,) for job in jobs], workers=workers)
        for k, line in enumerate(lines, start=1):
            print(line, flush=True)
            progress(k, len(jobs))


def parse() -> argparse.Namespace:
    """Return the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", type=int, default=60_000, help="training events under the test's cuts")
    parser.add_argument("--test", type=int, default=40_000, help="test events")
    parser.add_argument("--task", choices=[*TASKS, "both"], default="both")
    parser.add_argument("--learners", help="comma-separated registry names and realmlp; default: all of the registry")
    parser.add_argument("--preset", choices=["quick", "good", "best"], default="good")
    parser.add_argument("--seeds", type=int, default=1, help="how many seeds of each learner")
    parser.add_argument("--data-seed", type=int, default=7)
    parser.add_argument("--reference", default=REFERENCE, help="learner the others are compared with")
    parser.add_argument("--workers", type=int, default=2, help="processes")
    parser.add_argument("--threads", type=int, default=1, help="numerical threads per process")
    parser.add_argument("--out", type=Path, default=Path("peers"), help="where data and results are kept")
    parser.add_argument("--table", action="store_true", help="train nothing more: the table of what is done")
    parser.add_argument("--store", action="store_true", help=HELP)
    return parser.parse_args()


def main() -> None:
    """Train what is not yet trained, then compare."""
    arguments = parse()
    os.environ.setdefault("OMP_NUM_THREADS", str(arguments.threads))
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    tasks = list(TASKS.values()) if arguments.task == "both" else [TASKS[arguments.task]]
    jobs = {task.name: jobs_of(arguments, task, prepare(arguments, task)) for task in tasks}
    if not arguments.table:
        train_all([job for of in jobs.values() for job in of if not job.done], arguments.workers)
    settings = {key: str(value) for key, value in vars(arguments).items() if key not in ("out", "store", "table")}
    for task in tasks:
        source = read_json(jobs[task.name][0].data / f"{task.name}_train" / SOURCE_FILE)
        settings |= {f"{task.name} world": source["settings_hash"], f"{task.name} data seed": source["seed"]}
    lines = [f"Settings: `{json.dumps(settings)}`", ""]
    for task in tasks:
        lines += table(jobs[task.name], task, arguments.reference)
        lines += over_seeds(jobs[task.name], task, arguments.reference)
    text = "\n".join(lines)
    print(text)
    if arguments.store:
        store("peers", "Learners compared", f"{INTRODUCTION}\n\n{text}", weights="shipped")


if __name__ == "__main__":
    try:
        main()
    except InputError as error:
        raise SystemExit(f"error: {error}") from None
