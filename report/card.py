"""The model card of a run: what it is, which data and protocol, how good with intervals, its limits, its cost.

On disk it is ``model_card.md``. Its header is the metadata of Hugging Face's model cards in YAML
(huggingface.co/docs/hub/model-cards), which hubs and programs read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from showerstack.report.shared.markup import CONTROLS
from showerstack.report.shared.text import totals
from showerstack.runtime.files import atomic_path, is_as_written, read_json
from showerstack.runtime.stated import stated_as
from showerstack.scoring.metrics.level import LEVEL_TEXT
from showerstack.scoring.score import metrics_path
from showerstack.scoring.tasks import scoring_of
from showerstack.showers.schema import TASKS
from showerstack.showers.source import is_simulated, read_source
from showerstack.stacking.prediction.run import Run
from showerstack.stacking.stated import Manifest, TableMetrics

LICENCE = "MIT"
"""Of the software, its models and what it simulates."""
OTHERS_DATA = "the terms of those who provide them; a card grants no right to data"
GENERAL_LIMITS = (
    "Intervals come from the number of events alone; they hold no systematic error.",
    "One seed was trained; how much another seed would change is not shown.",
)
SHOWER_LIMITS = (
    "Training and test showers come from the same hadronic interaction models; how scores move when nature differs is "
    "not in the intervals.",
    "Valid for the array, the station response and the range of energy and zenith angle of the training showers.",
)
SIMULATED_LIMIT = (
    "Trained on showers simulated by showerstack: the numbers compare methods on simulated showers and are no scores "
    "on measured or KASCADE data."
)
PUBLIC_LIMIT = (
    "In the public pre-split files a shower reused at several core positions may be in training and test; that cannot "
    "be checked, and would flatter every system."
)
TABLE_LIMIT = "Valid for rows drawn like those of the training table."
USES = {
    "composition": "Mass group of the primary of an air shower; hard labels serve the benchmark's fraction error.",
    "gamma": "Score of an air shower, higher = more gamma-like; a threshold has to be chosen for the use at hand.",
    "energy": "lg E of the primary with an error.",
}
TABLE_USE = "Class of a row of a table like the one it was trained on."
SHOWN_SOURCE = ("model", "world", "seed", "protocol")
"""What the card repeats of ``source.json``."""


def write_card(run: Path) -> Path:
    """Write the model card of a finished run into the run folder and return it.

    Equal runs with equal scores give equal bytes but for time, cost and machine, which are in it. Metrics of the test
    set are in it once the run has been scored.
    """
    opened = Run.open(run)
    manifest, name = opened.manifest, opened.name
    sources, (metrics, remarks) = _sources(manifest), _metrics(opened)
    lines = (*_header(name, manifest, metrics.get("test")), *_body(name, manifest, sources, metrics, remarks))
    with atomic_path(opened.card) as temporary:
        temporary.write_text("\n".join(lines).translate(CONTROLS) + "\n", encoding="utf-8")
    return opened.card


def _sources(manifest: Manifest) -> dict[str, dict[str, Any]]:
    """Return what the dataset folders said of their origin in training; of runs that kept nothing, what they say now.

    Nothing of folders that are gone, and of tables.
    """
    sources: dict[str, dict[str, Any]] = {}
    data = manifest.data
    for split, folder, stored in (("train", data.train, data.train_source), ("test", data.test, data.test_source)):
        if stored is not None:
            sources[split] = dict(stored)
        elif manifest.task in TASKS and folder and Path(folder).is_dir():
            sources[split] = read_source(Path(folder))
    return sources


def _metrics(run: Run) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Return the scores that there are, of held-out rows of a table and of the test set, and remarks on their files."""
    scores = {"held_out": _of_shipped(run.held_out_scores())} if run.of_table else {}
    file = run.table_test_scores if run.of_table else metrics_path(run.predictions, run.task)
    if not file.exists():
        return scores, []
    metrics = read_json(file)
    if not is_as_written(metrics):
        return scores, [f"{file.name} is not as it was written, and its numbers are left out: score the run again"]
    if run.of_table:
        stated_as(TableMetrics, metrics, file)
        scores["test"] = _of_shipped(metrics)
    elif metrics.get("config_hash") in (None, run.manifest.config_hash):
        scoring = scoring_of(run.task)
        value, interval = scoring.headline(metrics)
        of_metric = {"value": value, **(interval.as_dict() if interval else {})}
        scores["test"] = {"judged_on": f"{metrics['n_events']:,} test showers", scoring.metric.name: of_metric}
        scores["test"] |= scoring.details(metrics) if interval else {}
    return scores, []


def _of_shipped(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return the scores of the system in use, of a run on a table."""
    scores = metrics["systems"][metrics["shipped"]]
    return {"judged_on": metrics["judged_on"]} | {
        name: scores[name] for name in ("log_loss", "accuracy", "auc") if scores[name]
    }


def _header(name: str, manifest: Manifest, test: Mapping[str, Any] | None) -> Iterator[str]:
    """Yield the metadata; values are JSON, which is YAML too."""
    task = manifest.task
    header: dict[str, Any] = {
        "license": LICENCE.lower(),
        "library_name": "showerstack",
        "tags": ["astroparticle-physics", "air-showers", "stacking", task],
    }
    if test is not None:
        scores = [
            {"type": name.replace(" ", "_"), "value": value["value"]}
            for name, value in test.items()
            if isinstance(value, Mapping)
        ]
        kind = "tabular-regression" if task in TASKS and TASKS[task].target else "tabular-classification"
        of_data = Path(str(manifest.data.test)).name
        results = [{"task": {"type": kind}, "dataset": {"type": of_data, "name": of_data}, "metrics": scores}]
        header["model-index"] = [{"name": name, "results": results}]
    yield from ("---", *(f"{key}: {json.dumps(value)}" for key, value in header.items()), "---", "")


def _body(
    name: str, manifest: Manifest, sources: Mapping[str, Any], metrics: Mapping[str, Any], remarks: list[str]
) -> Iterator[str]:
    task, simulated = manifest.task, any(map(is_simulated, sources.values()))
    limits = [*GENERAL_LIMITS, TABLE_LIMIT]
    if task in TASKS:
        limits[-1:] = [*SHOWER_LIMITS, SIMULATED_LIMIT if simulated else PUBLIC_LIMIT]
    limits += [f"Warning of the run: {_plain(line)}" for line in (*manifest.remarks, *remarks)]
    cost = totals(manifest.steps)
    yield from (f"# Model card: {_plain(name)}", "", USES.get(task, TABLE_USE), "")
    if task in TASKS and TASKS[task].target:
        yield f"It learns {len(manifest.classes)} bins with equal numbers of training showers."
    else:
        yield f"Classes: {', '.join(map(_plain, manifest.classes))}."
    yield from ("", "## Model", "", *_model(manifest))
    yield from ("", "## Data and protocol", "", *_data(manifest, sources))
    yield from ("", "## Metrics", "", *_scores(manifest, metrics))
    yield from ("", "## Limits", "", *(f"* {line}" for line in limits))
    yield from ("", "## Licence", "")
    yield f"Software and models: {LICENCE}. Data: {f'simulated data: {LICENCE}' if simulated else OTHERS_DATA}."
    yield from ("", "## Cost", "", f"{cost.cpu_s / 3600:.3f} CPU hours, {cost.peak_mb:,.0f} MB peak memory.")
    made = (manifest.started, manifest.machine, manifest.device, manifest.git_revision)
    started, where, device, revision = map(_plain, made)
    yield from ("", "## Made", "")
    yield (
        f"{started} on {where}, device {device}, seed {manifest.seed}, source revision {revision}, "
        f"configuration {manifest.config_hash[:16]}."
    )
    yield f"Packages: {', '.join(_plain(f'{name} {version}') for name, version in manifest.versions.items())}."


def _model(manifest: Manifest) -> Iterator[str]:
    pool, decision = manifest.pool, manifest.decision
    yield f"Used for predictions: **{_plain(manifest.shipped)}** ({_plain(manifest.gate.reason)})."
    yield f"Pool: {_plain(pool.chosen)}; decision: {_plain(decision.chosen)}."
    yield from ("", "| learner | from | parameters a fit | weight in the stack | held-out log-loss |")
    yield "|---|---|---|---|---|"
    for row in manifest.learners:
        name = row.name if row.status == "ok" else f"{row.name} (left out)"
        name = f"{row.name} (left out after one fold)" if row.left_the_race else name
        size, loss, weight = row.n_parameters, row.log_loss, pool.weights.get(row.name)
        numbers = ["-" if size is None else f"{size:,}", *("-" if x is None else f"{x:.4f}" for x in (weight, loss))]
        yield f"| {' | '.join(map(_plain, (name, row.source, *numbers)))} |"


def _data(manifest: Manifest, sources: Mapping[str, Any]) -> Iterator[str]:
    data, identity = manifest.data, manifest.identity
    yield from ("| set | events | origin | fingerprint |", "|---|---|---|---|")
    sets = {
        "train": (data.n_train, data.train, data.train_fingerprint),
        "test": (data.n_test, data.test, data.test_fingerprint),
    }
    for split, (n_events, place, mark) in sets.items():
        if not n_events:
            continue
        source, origin = sources.get(split, {}), "not simulated here"
        if is_simulated(source):
            origin = "simulated"
        elif manifest.task in TASKS and split not in sources:
            origin = "not known: the folder is gone"
        stated = ", ".join(f"{key} {source[key]}" for key in SHOWN_SOURCE if key in source)
        origin, name = origin + (f" ({stated})" if stated else ""), Path(str(place)).name
        yield f"| {split}: {_plain(name)} | {n_events:,} | {_plain(origin)} | {str(mark)[:16]} |"
    protocol = sources.get("test", sources.get("train", {})).get("protocol")
    yield ""
    yield (
        f"Benchmark protocol: {_plain(protocol or 'none stated')}. {identity.folds} folds, repeated "
        f"{identity.repeats} times; the system in use was scored on: "
        f"{_plain(manifest.judged.on)}. "
        "Test labels were read after predictions were on disk, for scoring and reports alone."
    )


def _scores(manifest: Manifest, metrics: Mapping[str, Any]) -> Iterator[str]:
    gate = manifest.gate
    yield from (f"[a, b] is a {LEVEL_TEXT} interval, ± one standard error.", "")
    if gate.gain is not None and gate.standard_error is not None and len(manifest.finished) > 1:
        yield (
            f"* Stack against the best learner on held-out training events: log-loss lower by {gate.gain:.4f} ± "
            f"{gate.standard_error:.4f}."
        )
    for scores in metrics.values():
        for name, value in scores.items():
            if name == "judged_on":
                yield f"* {value}:"
            elif isinstance(value, Mapping):
                span = f" [{value['low']:.4g}, {value['high']:.4g}]" if value.get("low") is not None else ""
                yield f"  * {name.replace('_', ' ')} {value['value']:.4g}{span}"
            else:
                yield f"  * {name} {_plain(value)}"
    if "test" not in metrics:
        yield "* Not scored on a labelled test set."


def _plain(text: Any) -> str:
    """Return text on one line that closes no cell and opens no markup."""
    words = " ".join(str("-" if text is None else text).split())
    return words.translate({ord(c): f"\\{c}" for c in "|*_`[]<>#"})
