"""A submission folder as the public benchmark asks for it, made from finished runs and checked before it is done."""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import re
import shlex
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from showerstack.models.registry import LEARNERS, spec
from showerstack.report.shared.subject import EvaluatedRun
from showerstack.report.shared.text import SIGNS, duration, metric_text, totals
from showerstack.runtime.errors import InputError, escaped
from showerstack.runtime.files import atomic_folder, write_npz
from showerstack.scoring.score import read_output
from showerstack.scoring.tasks import scoring_of
from showerstack.scoring.tasks.truth import origin_of
from showerstack.showers.schema import SUBMISSION_FILE
from showerstack.stacking.prediction.run import Run

PACKAGE = Path(__file__).parents[2]
"""``showerstack``; its folder ``source`` has what stands beside it in a checkout (links there)."""
LICENSE = "LICENSE"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_NOT_IN_YAML = re.compile("[\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]")


def write_submission(runs: Sequence[Path], name: str, *, data: Path, out: Path = Path("submissions")) -> Path:
    """Write ``OUT/NAME`` with predictions.npz, README.md, metadata.yaml and a snapshot of the source, and check it.

    Of one finished run, or one of each task. Rows are handed in in the order of the published files; under the 2026
    protocol, which forbids rules that shift decisions, the most probable class is. Labels of the test sets in ``data``
    give the scores in the README. What scoring would refuse is refused here.
    """
    if not NAME.fullmatch(name):
        raise InputError(f"--name {name!r}: use letters, digits, dot, dash and underscore, beginning with a letter")
    if files := [run for run in runs if run.is_file()]:
        raise InputError(
            f"{files[0]} is a file: a submission encloses what a run says of its making, and its code. Of another "
            f"program's predictions, hand in that code with {files[0].name}; python verify.py gives their scores"
        )
    opened = [Run.open(run) for run in runs]
    unknown_tasks = [run.task.name for run in opened if run.task.target]
    if unknown_tasks:
        raise InputError(
            f"the public benchmark knows no task {unknown_tasks[0]!r}: submit runs of composition and gamma"
        )
    tasks = [run.task.name for run in opened]
    if not opened or len(set(tasks)) != len(tasks):
        raise InputError(f"a submission holds one run of each task, got {', '.join(tasks) or 'none'}")
    parts = [EvaluatedRun.read(run, data) for run in runs]
    with atomic_folder(Path(out) / name) as folder:
        write_npz(folder / "predictions.npz", **{part.task.output_array: _handed_in(part) for part in parts})
        (folder / "README.md").write_text(_readme(name, parts), encoding="utf-8")
        (folder / SUBMISSION_FILE).write_text(yaml_text(_metadata(name, parts)), encoding="utf-8")
        snapshot(folder / "code", [name for part in parts for name in part.run.learners])
        check_submission(folder, parts)
    return Path(out) / name


def _handed_in(part: EvaluatedRun) -> np.ndarray:
    """Return the answers (N,) in the published order of rows."""
    return part.truth.published(part.output).astype(scoring_of(part.task).dtype)


def check_submission(folder: Path, parts: Sequence[EvaluatedRun]) -> None:
    """Read a submission folder back as scoring does, and compare with what it was made from."""
    for source in (source for part in parts for source in _packages_of(part.run.learners)):
        if not (folder / "code" / source.name).exists():
            raise InputError(f"{folder / 'code' / source.name} is missing, of which a learner is")
    for name in (
        "predictions.npz",
        "README.md",
        SUBMISSION_FILE,
        "code/pyproject.toml",
        "code/cli.py",
        f"code/{LICENSE}",
    ):
        if not (folder / name).is_file() or not (folder / name).stat().st_size:
            raise InputError(f"{folder / name} is missing or empty")
    texts = {name: (folder / name).read_text(encoding="utf-8") for name in ("README.md", SUBMISSION_FILE)}
    home = str(Path.home())
    for part in parts:
        stored, _ = read_output(folder / "predictions.npz", part.task, len(part.labels))
        if not np.array_equal(stored, part.truth.published(part.output)):
            raise InputError(f"{folder / 'predictions.npz'} differs from {part.run.predictions}")
        for name, text in texts.items():
            if str(part.run.folder.resolve()) in text or (home != "/" and home in text):
                raise InputError(f"{folder / name} names a folder of this machine")


def snapshot(target: Path, learners: Sequence[str] = ()) -> None:
    """Copy the project's source, and that of installed packages that learners are of; without caches or data."""
    ignore = shutil.ignore_patterns("__pycache__", "*.pyc", ".*")
    for source in (PACKAGE, *_packages_of(learners)):
        if source.is_dir():
            shutil.copytree(source, target / source.name, ignore=ignore)
        else:
            shutil.copy2(source, target / source.name)
    for file in (PACKAGE / "source").iterdir():
        if file.is_file():
            shutil.copy2(file, target / file.name)
    if not (target / LICENSE).exists():  # of an installation it lies among the metadata
        text = importlib.metadata.distribution(PACKAGE.name).read_text(f"licenses/{LICENSE}")
        (target / LICENSE).write_text(text or "", encoding="utf-8")


def _packages_of(learners: Sequence[str]) -> list[Path]:
    """Return the packages or modules, other than ours, that learners are of, as far as they are installed."""
    known = [spec(name) for name in learners if name in LEARNERS]
    modules = {one.learner.partition(":")[0].partition(".")[0] for one in known} - {PACKAGE.name}
    files = (Path(str(importlib.import_module(module).__file__)) for module in sorted(modules))
    return [file.parent if file.name == "__init__.py" else file for file in files]


def _scores(part: EvaluatedRun) -> dict[str, str]:
    """Return the headline numbers with their confidence intervals."""
    scoring = scoring_of(part.task)
    value, interval = scoring.headline(part.metrics)
    assert interval is not None
    words = metric_text(value, interval, scoring.metric)
    return {scoring.metric.name: words, **scoring.details(part.metrics)}


def _is_public(part: EvaluatedRun) -> bool:
    return origin_of(part.truth.folder, part.task).public


def _metadata(name: str, parts: Sequence[EvaluatedRun]) -> dict[str, Any]:
    content = {}
    for part in parts:
        manifest = part.run.manifest
        cost = totals(manifest.steps)
        options = {k: v for k, v in manifest.config.as_json().items() if k not in ("run", "data") and v is not None}
        content[part.task.name] = {
            "model": f"{part.run.shipped} of {', '.join(part.run.learners)}",
            "scores": _scores(part),
            "test_events": len(part.labels),
            "public_test_set": _is_public(part),
            "tuned_on_test": False,
            "configuration": options,
            "configuration_hash": manifest.config_hash,
            "source_revision": str(manifest.git_revision),
            "device": manifest.device,
            "wall_clock_s": round(cost.wall_s, 1),
            "cpu_time_s": round(cost.cpu_s, 1),
            "peak_memory_mb": round(cost.peak_mb),
            "number_of_experiments": len(manifest.learners),
            "number_of_trainings": sum(step.step == "train" for step in manifest.steps),
            "versions": manifest.versions,
        }
    return {"name": name, "tasks": content}


def yaml_text(content: Mapping[str, Any]) -> str:
    """Return plain values as JSON, which is YAML too; what YAML forbids in a file is escaped.

    These are C1 controls, separators, surrogates and marks of byte order.
    """
    text = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False)
    return _NOT_IN_YAML.sub(lambda c: f"\\u{ord(c[0]):04x}", text) + "\n"


def _markdown(text: Any) -> str:
    """Return text that Markdown and HTML show as it is, on one line."""
    return re.sub(r"([\\`*_\[\]<>|#&$~!])", r"\\\1", escaped(str(text)))


def _readme(name: str, parts: Sequence[EvaluatedRun]) -> str:
    lines = [f"# {name}", ""]
    for part in parts:
        lines += [f"## {part.task.name}", ""]
        if not _is_public(part):
            kind = "simulated " if part.simulated else ""
            warning = f"**Not the public test set** ({len(part.labels):,} {kind}events)"
            lines += [f"{warning}: these scores belong in no public table.", ""]
        lines += [f"### Scores ({SIGNS})", ""]
        lines += [f"- {key}: {text}" for key, text in _scores(part).items()]
        lines += ["", "### Approach", "", *_approach(part.run), "", "### Learners on the test set", ""]
        lines += [f"| system | {part.shipped.beside.head} | {part.metric.name} |", "|---|---|---|"]
        for one in part.systems:
            value = metric_text(one.value, one.interval, part.metric)
            lines.append(f"| {_markdown(one.name)} | {one.beside.bracketed} | {value} |")
        lines += ["", "### What failed or did not help", "", *_failures(part.run), ""]
    shuffled = any(part.truth.order is not None for part in parts)
    in_order = " --published-order" if shuffled else ""
    lines += [
        "Rows are in the published order; the run's own predictions follow the shuffled test folder (`order.npy`)."
        if shuffled
        else "Rows are in the published order, which is also that of the run's own predictions.",
        "",
        "## Making it again",
        "",
        "`code/` holds the source. In it, with the benchmark's files under `data/`:",
        "",
        "```",
        "make env",
        *(
            f".venv/bin/python cli.py stack --data data {_options(part.run)} --run runs/{part.task.name}"
            for part in parts
        ),
        f".venv/bin/python verify.py --task {parts[0].task.name} --data data{in_order} ../predictions.npz",
        "```",
        "",
    ]
    return "\n".join(lines)


def _options(run: Run) -> str:
    config = run.manifest.config
    named = {"task": run.task.name, "preset": config.preset, "seed": config.seed}
    words = [f"--{name} {shlex.quote(escaped(str(value)))}" for name, value in named.items() if value is not None]
    if config.learners:
        words.append(f"--learners {shlex.quote(escaped(','.join(config.learners)))}")
    return " ".join(words)


def _approach(run: Run) -> list[str]:
    manifest = run.manifest
    cost = totals(manifest.steps)
    folds = sum(step.step == "train" for step in manifest.steps) // max(len(run.learners), 1)
    lines = [
        f"Base learners ({_markdown(', '.join(run.learners))}) predict out of fold ({folds} trainings each); "
        "their log-probabilities are combined by a pool that was fitted on rows that they did not learn from. "
        "No test label took part in any choice.",
        "",
        f"- pool: {_markdown(manifest.pool.chosen)}",
        f"- acceptance test: {_markdown(manifest.gate.reason)}",
    ]
    for source in _packages_of(run.learners):
        lines.append(f"- `code/{source.name}` is another package, to be installed with its entry point")
    lines.append(f"- cost: {duration(cost.cpu_s)} of CPU time, {cost.peak_mb:,.0f} MB peak")
    return lines


def _failures(run: Run) -> list[str]:
    lines = [
        f"- {_markdown(row.name)} failed: {_markdown(row.error)}"
        for row in run.manifest.learners
        if row.status == "failed"
    ]
    if run.shipped != "stack":
        reason = _markdown(run.manifest.gate.reason)
        lines.append(f"- {_markdown(run.shipped)} predicts instead of the stack: {reason}")
    return lines or ["- nothing failed in this run"]
