"""The model card of a run: what it is, which data and protocol, how good with intervals, its limits, its cost.

On disk it is ``model_card.md``. Its header is the metadata of Hugging Face's model cards in YAML
(huggingface.co/docs/hub/model-cards), which hubs and programs read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from showerstack.report.shared.text import totals
from showerstack.runtime.checksums import Checksums
from showerstack.runtime.files import atomic_path, is_as_written, read_json
from showerstack.scoring.metrics.level import LEVEL_TEXT
from showerstack.scoring.tasks import scoring_of
from showerstack.showers.schema import TASKS, task_named
from showerstack.showers.source import is_simulated, read_source
from showerstack.stacking.run import METRICS_FILE, TABLE_TEST_FILE, Run, shipped_system

CARD_FILE = "model_card.md"
SOFTWARE_LICENCE = "MIT"
SIMULATED, OTHER = "simulated", "not simulated here"
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
USES = {
    "composition": "Mass group of the primary of an air shower; hard labels serve the benchmark's fraction error.",
    "gamma": "Score of an air shower, higher = more gamma-like; a threshold has to be chosen for the use at hand.",
    "energy": "lg E of the primary with an error.",
}


def card_content(folder: Path) -> dict[str, Any]:
    """Return the card of a finished run; metrics of the test set are in it once the run has been scored."""
    manifest = Run.open(folder).manifest
    sources = _sources(manifest)
    return {
        "name": Path(folder).resolve().name,
        "task": str(manifest["task"]),
        "classes": list(manifest["classes"]),
        "use": USES.get(str(manifest["task"]), "Class of a row of a table like the one it was trained on."),
        "made": {key: manifest.get(key) for key in ("started", "machine", "device", "git_revision", "seed")},
        "model": _model(manifest),
        "data": _data(manifest, sources),
        "protocol": _protocol(manifest, sources),
        "metrics": _metrics(Path(folder), manifest),
        "remarks": [*map(str, manifest.get("remarks", [])), *_changed_remarks(Path(folder), manifest)],
        "limits": _limits(manifest, sources),
        "licence": {
            "software_and_models": SOFTWARE_LICENCE,
            "data": f"simulated data: {SOFTWARE_LICENCE}"
            if _simulated(sources)
            else "the terms of those who provide them; a card grants no right to data",
        },
        "cost": totals(manifest.get("steps", [])),
        "versions": manifest.get("versions", {}),
        "config_hash": manifest.get("config_hash"),
    }


def _model(manifest: Mapping[str, Any]) -> dict[str, Any]:
    gate, weights = manifest.get("gate", {}), manifest.get("pool", {}).get("weights") or {}
    return {
        "shipped": shipped_system(manifest),
        "why": gate.get("reason"),
        "pool": manifest.get("pool", {}).get("chosen"),
        "decision": manifest.get("decision", {}).get("chosen"),
        "learners": [
            {
                "name": row["name"],
                "status": row.get("status"),
                "source": row.get("source"),
                "parameters_a_fit": row.get("n_parameters"),
                "weight": weights.get(row["name"]),
                "held_out_log_loss": row.get("log_loss"),
            }
            for row in manifest.get("learners", [])
        ],
    }


def _sources(manifest: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return what the dataset folders said of their origin in training; of runs that kept nothing, what they say now.

    Nothing of folders that are gone, and of tables.
    """
    sources: dict[str, dict[str, Any]] = {}
    for split in ("train", "test"):
        data = manifest.get("data", {})
        folder, stored = data.get(split), data.get(f"{split}_source")
        if stored is not None:
            sources[split] = dict(stored)
        elif manifest["task"] in TASKS and folder and Path(folder).is_dir():
            sources[split] = read_source(Path(folder))
    return sources


def _simulated(sources: Mapping[str, Mapping[str, Any]]) -> bool:
    return any(is_simulated(source) for source in sources.values())


def _data(manifest: Mapping[str, Any], sources: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    data = manifest.get("data", {})
    sets: dict[str, Any] = {}
    for split in ("train", "test"):
        if not data.get(f"n_{split}"):
            continue
        source = sources.get(split, {})
        known = split in sources or manifest["task"] not in TASKS
        sets[split] = {
            "name": Path(str(data.get(split))).name,
            "events": data[f"n_{split}"],
            "fingerprint": data.get(f"{split}_fingerprint"),
            "origin": SIMULATED if is_simulated(source) else OTHER if known else None,
            "source": {key: value for key, value in source.items() if isinstance(value, str | int | float)},
        }
    if "train" in sets:
        sets["train"] |= {"judged": data.get("n_judged"), "held_out": data.get("n_holdout")}
    return sets


def _protocol(manifest: Mapping[str, Any], sources: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    identity = manifest.get("identity", {})
    stated = sources.get("test", sources.get("train", {})).get("protocol")
    return {
        "benchmark": stated,
        "folds": identity.get("folds"),
        "repeats": identity.get("repeats"),
        "judged_on": manifest.get("judged", {}).get("on"),
        "test_labels": "read after predictions were on disk, for scoring and reports alone",
    }


def _metrics(folder: Path, manifest: Mapping[str, Any]) -> dict[str, Any]:
    gate = manifest.get("gate", {})
    content: dict[str, Any] = {
        "held_out_gain_of_the_stack": {
            key: gate.get(key) for key in ("gain", "standard_error", "claimed") if key in gate
        }
    }
    for key, file in _scored(folder, manifest).items():
        metrics = read_json(file) if key == "test" else read_json(Checksums.open(folder).path(file.name))
        if key == "test" and not is_as_written(metrics):
            continue  # edited or damaged: what stands in it is no score of this run
        if manifest["task"] not in TASKS:
            systems = metrics["systems"][metrics["shipped"]]
            content[key] = {"judged_on": metrics["judged_on"], **{k: systems[k] for k in _KEYS if k in systems}}
        elif metrics.get("config_hash") in (None, manifest.get("config_hash")):
            task = task_named(str(manifest["task"]))
            value, interval = scoring_of(task).headline(metrics)
            content[key] = {
                "judged_on": f"{metrics['n_events']:,} test showers",
                scoring_of(task).metric.name: {"value": value, **(interval.as_dict() if interval else {})},
                **(scoring_of(task).details(metrics) if interval else {}),
            }
    return content


def _scored(folder: Path, manifest: Mapping[str, Any]) -> dict[str, Path]:
    if manifest["task"] in TASKS:
        files = {"test": folder / f"metrics_{manifest['task']}.json"}
    else:
        files = {"held_out": folder / METRICS_FILE, "test": folder / TABLE_TEST_FILE}
    return {key: file for key, file in files.items() if file.exists()}


def _changed_remarks(folder: Path, manifest: Mapping[str, Any]) -> list[str]:
    """Return which file of metrics was changed after it was written."""
    file = _scored(folder, manifest).get("test")
    if file is None or is_as_written(read_json(file)):
        return []
    return [f"{file.name} is not as it was written, and its numbers are left out: score the run again"]


_KEYS = ("log_loss", "accuracy", "auc")


def _limits(manifest: Mapping[str, Any], sources: Mapping[str, Mapping[str, Any]]) -> list[str]:
    lines = [*GENERAL_LIMITS]
    if manifest["task"] not in TASKS:
        return [*lines, "Valid for rows drawn like those of the training table."]
    lines += SHOWER_LIMITS
    lines.append(SIMULATED_LIMIT if _simulated(sources) else PUBLIC_LIMIT)
    return lines


def write_card(run: Path) -> Path:
    """Write the model card of a finished run into the run folder and return it.

    Equal runs with equal scores give equal bytes but for time, cost and machine, which are in it.
    """
    content = card_content(run)
    with atomic_path(run / CARD_FILE) as temporary:
        temporary.write_text("\n".join((*_header(content), *card_lines(content))) + "\n", encoding="utf-8")
    return run / CARD_FILE


def _header(content: Mapping[str, Any]) -> Iterator[str]:
    """Yield the metadata; values are JSON, which is YAML too."""
    header: dict[str, Any] = {
        "license": SOFTWARE_LICENCE.lower(),
        "library_name": "showerstack",
        "tags": ["astroparticle-physics", "air-showers", "stacking", content["task"]],
    }
    scores = [
        {"type": name.replace(" ", "_"), "value": value["value"] if isinstance(value, Mapping) else value}
        for name, value in content["metrics"].get("test", {}).items()
        if name != "judged_on"
    ]
    if scores and "test" in content["data"]:
        known = TASKS.get(content["task"])
        kind = "tabular-regression" if known is not None and known.target else "tabular-classification"
        name = content["data"]["test"]["name"]
        results = [{"task": {"type": kind}, "dataset": {"type": name, "name": name}, "metrics": scores}]
        header["model-index"] = [{"name": content["name"], "results": results}]
    yield from ("---", *(f"{key}: {json.dumps(value)}" for key, value in header.items()), "---", "")


def card_lines(content: Mapping[str, Any]) -> Iterator[str]:
    """Yield the card as Markdown."""
    yield from (f"# Model card: {_plain(content['name'])}", "", content["use"], "")
    yield f"Classes: {', '.join(map(_plain, content['classes']))}."
    parts = (
        ("Model", _model_lines(content["model"])),
        ("Data and protocol", _data_lines(content["data"], content["protocol"])),
        ("Metrics", _metric_lines(content["metrics"])),
        ("Limits", (f"* {line}" for line in (*content["limits"], *map(_remark, content["remarks"])))),
        ("Licence", _licence_lines(content["licence"])),
        ("Cost", _cost_lines(content["cost"])),
        ("Made", _made_lines(content)),
    )
    for title, lines in parts:
        yield from ("", f"## {title}", "")
        yield from lines


def _remark(line: str) -> str:
    return f"Warning of the run: {_plain(line)}"


def _model_lines(model: Mapping[str, Any]) -> Iterator[str]:
    yield f"Used for predictions: **{_plain(model['shipped'])}** ({_plain(model['why'])})."
    yield f"Pool: {_plain(model['pool'])}; decision: {_plain(model['decision'])}."
    yield from ("", "| learner | from | parameters a fit | weight in the stack | held-out log-loss |")
    yield "|---|---|---|---|---|"
    for row in model["learners"]:
        name = row["name"] if row["status"] == "ok" else f"{row['name']} (left out)"
        numbers = (_count(row["parameters_a_fit"]), _number(row["weight"]), _number(row["held_out_log_loss"]))
        yield f"| {' | '.join(map(_plain, (name, row['source'], *numbers)))} |"


def _data_lines(data: Mapping[str, Any], protocol: Mapping[str, Any]) -> Iterator[str]:
    yield from ("| set | events | origin | fingerprint |", "|---|---|---|---|")
    for split, row in data.items():
        origin = f"{row['origin'] or 'not known: the folder is gone'}{_source(row['source'])}"
        name, mark = _plain(row["name"]), str(row["fingerprint"])[:16]
        yield f"| {split}: {name} | {row['events']:,} | {_plain(origin)} | {mark} |"
    yield ""
    yield (
        f"Benchmark protocol: {_plain(protocol['benchmark'] or 'none stated')}. {protocol['folds']} folds, repeated "
        f"{protocol['repeats']} times; the system in use was scored on: {_plain(protocol['judged_on'])}. "
        f"Test labels were {protocol['test_labels']}."
    )


def _licence_lines(licence: Mapping[str, str]) -> Iterator[str]:
    yield f"Software and models: {licence['software_and_models']}. Data: {licence['data']}."


def _cost_lines(cost: Mapping[str, Any]) -> Iterator[str]:
    hours = cost["cpu_s"] / 3600
    yield f"{hours:.3f} CPU hours, {cost['peak_mb']:,.0f} MB peak memory."


def _made_lines(content: Mapping[str, Any]) -> Iterator[str]:
    made = content["made"]
    yield (
        f"{_plain(made['started'])} on {_plain(made['machine'])}, device {_plain(made['device'])}, "
        f"seed {made['seed']}, source revision {_plain(made['git_revision'])}, "
        f"configuration {str(content['config_hash'])[:16]}."
    )
    yield f"Packages: {', '.join(f'{name} {version}' for name, version in content['versions'].items())}."


def _metric_lines(metrics: Mapping[str, Any]) -> Iterator[str]:
    yield from (f"[a, b] is a {LEVEL_TEXT} interval, ± one standard error.", "")
    gain = metrics["held_out_gain_of_the_stack"]
    if gain.get("gain") is not None:
        yield (
            f"* Stack against the best learner on held-out training events: log-loss lower by {gain['gain']:.4f} ± "
            f"{gain['standard_error']:.4f}."
        )
    for key in ("held_out", "test"):
        for name, value in metrics.get(key, {}).items():
            if name == "judged_on":
                yield f"* {value}:"
            elif isinstance(value, Mapping):
                span = f" [{value['low']:.4g}, {value['high']:.4g}]" if "low" in value else ""
                yield f"  * {name.replace('_', ' ')} {value['value']:.4g}{span}"
            else:
                yield f"  * {name} {_plain(value)}"
    if "test" not in metrics:
        yield "* Not scored on a labelled test set."


def _source(source: Mapping[str, Any]) -> str:
    known = [f"{key} {source[key]}" for key in ("model", "world", "seed", "protocol") if key in source]
    return f" ({', '.join(known)})" if known else ""


def _number(value: Any) -> str:
    return f"{value:.4f}" if isinstance(value, int | float) else "-"


def _count(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else "-"


def _plain(text: Any) -> str:
    """Return text on one line that closes no cell and opens no markup."""
    words = " ".join(str("-" if text is None else text).split())
    return words.translate({ord(c): f"\\{c}" for c in "|*_`[]<>#"})
