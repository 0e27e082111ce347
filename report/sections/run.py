"""Sections on how the run was made: training curves, cost, provenance."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from report.page.markup import Section, paragraph, picture, pictures, table
from report.pictures.learners import training_picture
from report.pictures.style import as_svg
from report.reading.subject import Subject
from report.terminal.text import short
from showers.execution.terminal import escaped
from showers.storage.files import read_json
from stacking.tasks.energy import MEASURED, WATTS_PER_CORE


def training(subject: Subject) -> Section | None:
    """Return validation curves of the networks, where the saved learners carry them."""
    curves = {}
    for name in subject.run.learner_names:
        header = f"learners/{name}/fold-0/learner.json"
        if header in subject.run.sealed.files:
            losses = read_json(subject.run.sealed.path(header)).get("losses")
            if isinstance(losses, list) and len(losses) > 1:
                curves[name] = [float(value) for value in losses]
    if not curves:
        return None
    caption = "Log-loss on the early-stopping split (cut from the training folds) of each network's first fold."
    figure = as_svg(training_picture(curves), "validation log-loss by epoch")
    return Section("training", "Learning curves", pictures([picture(figure, caption)]))


def choices(subject: Subject) -> Section | None:
    """Return what was chosen on held-out showers: meta-learner with its weights, decision rule, and by how much."""
    return choices_of(subject.run.manifest)


def choices_of(manifest: Mapping[str, Any]) -> Section | None:
    """Return what a run's manifest says of its choices."""
    parts = []
    meta = manifest.get("meta", {})
    if meta.get("losses"):
        judge = str(meta.get("judge", "loss")).replace("_", " ")
        rows = [(name.replace("_", " "), f"{loss:.4f}") for name, loss in meta["losses"].items()]
        chosen = str(meta.get("chosen")).replace("_", " ")
        parts.append(paragraph(f"Meta-learner: {chosen}, judged by {judge} in nested folds of the training set."))
        parts.append(table(("meta-learner", judge), rows))
        parts.append(
            paragraph(
                "These numbers only choose, on out-of-fold predictions of single fits; they carry no intervals.",
                "quiet",
            )
        )
    if isinstance(meta.get("weights"), dict):
        rows = [(name, f"{weight:.3f}") for name, weight in meta["weights"].items() if isinstance(weight, float)]
        parts.append(table(("learner", "weight in the stack"), rows))
    decision = manifest.get("decision", {})
    if decision.get("held_out_fraction_error"):
        worse = decision.get("worse_than_best", {})
        lines = []
        for rule, error in decision["held_out_fraction_error"].items():
            gap = worse.get(rule, {})
            text = f"{gap['difference']:+.4f} ± {gap['standard_error']:.4f}" if gap else ""
            lines.append((rule, f"{error:.4f}", text))
        parts.append(paragraph(f"Decision rule: {decision.get('chosen')}, the simplest within one standard error."))
        parts.append(table(("rule", "held-out fraction error", "worse than the best by (standard error)"), lines))
    if decision.get("thresholds"):
        parts.append(_thresholds(decision["thresholds"]))
    parts += [paragraph(str(remark), "warn") for remark in manifest.get("remarks", [])]
    return Section("choices", "What was chosen on held-out training events", "".join(parts)) if parts else None


def _thresholds(rows: list[dict[str, Any]]) -> str:
    """Return thresholds by gamma efficiency, with the purity to expect in a real mixture."""
    ratios = list(rows[0].get("purity", {}))
    heads = ["gamma efficiency", "threshold", "hadron survival", *(f"purity at 1:{1 / float(r):,.0f}" for r in ratios)]
    cells = []
    for row in rows:
        low, high = row["hadron_survival_interval"]
        line = [f"{row['gamma_efficiency']:.3f}", f"{row['threshold']:.3f}"]
        line.append(f"{short(row['hadron_survival'])} [{short(low)}, {short(high)}]")
        for ratio in ratios:
            bottom, top = row["purity"][ratio]["interval"]
            line.append(f"{bottom:.2g} to {top:.2g}")
        cells.append(line)
    note = paragraph(
        "Scores of held-out training showers under the test's cuts. Purity: share of true gammas among the "
        "selected, 95 % interval, for one gamma in so many hadrons.",
        "quiet",
    )
    return "<h3>Thresholds for use</h3>" + table(heads, cells) + note


def totals(steps: Iterable[dict[str, Any]]) -> dict[str, float]:
    """Return summed wall-clock and CPU seconds, peak memory in MB, and energy in watt-hours of steps.

    ``energy_wh`` is that of processor and GPU; ``gpu_wh`` the GPU's in it, ``measured_share`` the share of the
    processor's that was counted and not estimated.
    """
    steps = list(steps)
    wall, cpu = (sum(float(step.get(key) or 0) for step in steps) for key in ("wall_s", "cpu_s"))
    peak = max((float(step.get("peak_mb") or 0) for step in steps), default=0.0)
    processor = sum(_processor_j(step) for step in steps)
    counted = sum(_processor_j(step) for step in steps if step.get("energy_source") == MEASURED)
    gpu = sum(float(step.get("gpu_j") or 0) for step in steps)
    return {
        "wall_s": wall,
        "cpu_s": cpu,
        "peak_mb": peak,
        "energy_wh": (processor + gpu) / 3600,
        "gpu_wh": gpu / 3600,
        "measured_share": counted / processor if processor else 0.0,
    }


def _processor_j(step: Mapping[str, Any]) -> float:
    """Return the processor's joules of a step; runs of earlier versions kept none."""
    joules = step.get("cpu_j")
    return float(step.get("cpu_s") or 0) * WATTS_PER_CORE if joules is None else float(joules)


def energy_words(found: Mapping[str, float], device: str) -> str:
    """Return how the energy in :func:`totals` was found."""
    estimate = f"estimated at {WATTS_PER_CORE:g} W per busy core, right within a factor of two"
    share = found["measured_share"]
    if share >= 1.0 - 1e-9:
        words = "The processor's energy was counted by RAPL and shared by CPU time"
    elif share > 0:
        words = f"{100 * share:.0f} % of the processor's energy was counted by RAPL, the rest is {estimate}"
    else:
        words = f"The processor's energy is {estimate}"
    if found["gpu_wh"]:
        return f"{words}; the GPU's ({found['gpu_wh']:.2f} Wh) was counted by NVML."
    return f"{words}; the GPU's is not included." if device == "cuda" else f"{words}."


def duration(seconds: float) -> str:
    """Return seconds as people say them."""
    if seconds < 100:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def cost(subject: Subject) -> Section | None:
    """Return time, memory and energy of each step, folds summed."""
    return cost_of(subject.run.manifest)


def cost_of(manifest: Mapping[str, Any]) -> Section | None:
    """Return what a run's manifest says of its cost."""
    steps = manifest.get("steps", [])
    if not steps:
        return None
    grouped: dict[str, list[dict[str, Any]]] = {}
    for step in steps:
        name = f"{step.get('step')} {step['learner']}" if step.get("learner") else str(step.get("step"))
        grouped.setdefault(name, []).append(step)
    rows = []
    for name, members in [*grouped.items(), ("all", steps)]:
        found = totals(members)
        rows.append(
            (
                name,
                f"{len(members)}",
                duration(found["wall_s"]),
                duration(found["cpu_s"]),
                f"{found['peak_mb']:,.0f}",
                f"{found['energy_wh']:.2f}",
            )
        )
    heads = ("step", "tasks", "wall-clock, summed", "CPU time", "peak memory, MB", "energy, Wh")
    note = paragraph(
        "Tasks may have run side by side: wall-clock sums over them. "
        + energy_words(totals(steps), str(manifest.get("device"))),
        "quiet",
    )
    return Section("cost", "Cost", table(heads, rows, ours=[len(rows) - 1]) + note)


def made(subject: Subject) -> list[str]:
    """Return when, on what machine and by what command a run was made, as far as its manifest says."""
    manifest = subject.run.manifest
    keys = (("started", "{}"), ("machine", "{}"), ("command", "command: {}"))
    return [form.format(escaped(str(manifest[key]))) for key, form in keys if manifest.get(key)]


def provenance(subject: Subject) -> Section:
    """Return what is needed to make the run again."""
    source = [(f"test set: {key}", str(value)) for key, value in subject.dataset.source.items()]
    rows = provenance_rows(subject.run.manifest, source)
    return Section("provenance", "Provenance", table(("", ""), rows, kind="wide"))


def provenance_rows(manifest: Mapping[str, Any], source: Iterable[tuple[str, str]] = ()) -> list[tuple[str, str]]:
    """Return a manifest's entries by which a run can be made again; ``source`` stands after its data."""
    rows = [
        ("model card", "model_card.md, model_card.json and ro-crate-metadata.json beside this page"),
        ("configuration hash", str(manifest.get("config_hash"))),
        ("source revision", str(manifest.get("git_revision"))),
        *((key, str(manifest[key])) for key in ("started", "machine", "command") if manifest.get(key)),
        ("seed", str(manifest.get("seed"))),
        ("device", str(manifest.get("device"))),
    ]
    data = {key: value for key, value in manifest.get("data", {}).items() if not isinstance(value, dict)}
    rows += [(f"data: {key.replace('_', ' ')}", str(value)) for key, value in data.items()]
    rows += source
    rows += [(f"option: {key}", str(value)) for key, value in manifest.get("config", {}).items() if value is not None]
    rows += [(f"version: {name}", str(version)) for name, version in manifest.get("versions", {}).items()]
    return rows
