"""The page of the closure benchmark: what covers and what does not, worst first."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from runtime.files import atomic_path
from scoring.metrics.intervals import clopper_pearson
from showers.schema import COMPOSITION

GOALS = {"68": 0.6827, "95": 0.95}
GRID = {
    "labels": "decided labels as they are", "clipped": "matrix inverse, clipped (as published)",
    "inverse": "matrix inverse", "likelihood": "likelihood of the posteriors",
    "checked": "likelihood, checked by simulation (ours)",
}  # fmt: skip


def write_page(done: list[dict[str, Any]], file: Path, given: dict[str, Any]) -> None:
    """Write the page from finished experiments."""
    by_kind: dict[str, list[dict[str, Any]]] = {}
    for one in done:
        by_kind.setdefault(one["kind"], []).append(one)
    coverage = [*_coverage(by_kind), *_knees(by_kind), *_limits(by_kind)]
    coverage.sort(key=lambda row: row[0])
    size = f"{given['train']:,} training and {given['test']:,} other showers of each task"
    lines = [
        "# Do stated errors cover?",
        "",
        "Known skies through the whole analysis, by `python benchmarks/physics/closure.py`:",
        f"{size}, learner `{given['learner']}`, default world, one seed.",
        _sizes(by_kind),
        "Brackets: 95 % intervals over experiments, whose bins are correlated.",
        *([given["note"]] if given.get("note") else []),
        "",
        *_news(by_kind),
        "## Coverage: too little first, then too much",
        "",
        "| what | stated | found | experiments | pull width |",
        "|---|---|---|---|---|",
        *(row[1] for row in coverage),
        "",
        *_words(by_kind),
        *_methods(by_kind),
        *_mixtures(by_kind),
    ]  # fmt: skip
    file.parent.mkdir(parents=True, exist_ok=True)
    with atomic_path(file) as temporary:
        temporary.write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")


def _sizes(by_kind: dict[str, list[dict[str, Any]]]) -> str:
    """Return how many events the skies have."""
    words = {
        "spectra": "pseudo-experiments",
        "epos": "of EPOS alone",
        "sky_mix": "simulated anew",
        "sky_sibyll": "of SIBYLL",
    }
    means = {kind: np.mean([one["events"] for one in by_kind[kind]]) for kind in words if kind in by_kind}
    return "Events of a sky: " + ", ".join(f"{mean:,.0f} ({words[kind]})" for kind, mean in means.items()) + "."


def _news(by_kind: dict[str, list[dict[str, Any]]]) -> list[str]:
    """Return what to know before the tables, worst first."""
    lines = []
    methods = [one["methods"] for one in by_kind.get("spectra", []) if "methods" in one]
    if methods:
        absolute = {name: np.array([one[name]["absolute"] for one in methods]) for name in methods[0]}
        best = min(absolute, key=lambda name: float(absolute[name].mean()))
        ours = absolute["likelihood_checked"]
        gain = ours - absolute[best]
        error = gain.std(ddof=1) / np.sqrt(len(gain)) if len(gain) > 1 else 0.0
        lines.append(
            f"* In skies of this size `{best.replace('_', ' ')}` comes closest to the shares of single energy bins:\n"
            f"  mean absolute error {100 * absolute[best].mean():.1f} % beside {100 * ours.mean():.1f} % of the\n"
            f"  shipped default (difference {100 * gain.mean():.1f} ± {100 * error:.1f})."
        )  # fmt: skip
    entries = [one["rigidity"]["found"] for one in by_kind.get("spectra", []) if "rigidity" in one]
    if entries:
        lines.append(
            f"* The rigidity of the knees comes out at lg R {np.mean(entries):.3f} ±"
            f" {np.std(entries) / np.sqrt(len(entries)):.3f} on average, where 15.643 is true;\n"
            "  its intervals are wide enough for that, but many are open on a side."
        )
    for kind, name in (("epos", "EPOS alone"), ("sky_sibyll", "SIBYLL")):
        every = by_kind.get(kind, [])
        for words, pick in (("statistical errors alone", "statistical_only"), ("all stated errors", None)):
            shares = [(one[pick] if pick else one)["fraction"] for one in every]
            if shares:
                part = sum(one["in95"] for one in shares) / sum(one["n"] for one in shares)
                lines.append(f"* A sky of {name}, fractions: the 95 % intervals of {words} hold {100 * part:.1f} %.")
    return [*lines, ""] if lines else []


def _row(name: str, stated: float, each: np.ndarray, width: str, *, least: bool) -> tuple[float, str]:
    """Return a row and its place: what covers too little first, then too much, then limits that cover enough.

    Parameters
    ----------
    each
        (experiments, 2): intervals of one experiment that cover, and how many there are. What one experiment finds in
        several bins is correlated: the interval is that of the mean over experiments.
    """
    hits, n = (int(value) for value in each.sum(axis=0))
    result, m = hits / max(n, 1), len(each)
    exact = clopper_pearson(hits, n)
    low, high = exact.low, exact.high
    error = float(np.sqrt(((each[:, 0] - result * each[:, 1]) ** 2).sum() * m / max(m - 1, 1)) / n)
    if n > m > 1 and error > 0:
        low, high = max(result - 1.96 * error, 0.0), min(result + 1.96 * error, 1.0)
    off = (result - stated) / max(error, float(np.sqrt(stated * (1 - stated) / max(m, 1))) if n == m else error, 1e-9)
    place = off if off < 0 else 1000.0 if least else 100.0 - min(off, 99.0)
    limit = "at least " if least else ""
    text = f"{100 * result:.1f} % [{100 * low:.1f}, {100 * high:.1f}]"
    return float(place), f"| {name} | {limit}{100 * stated:.0f} % | {text} | {m} | {width} |"


def _coverage(by_kind: dict[str, list[dict[str, Any]]]) -> list[tuple[float, str]]:
    rows = []
    cases = [
        ("spectra", None, "same world, errors of data and simulation"),
        ("epos", None, "sky of EPOS alone, simulation a mix, all errors"),
        ("epos", "statistical_only", "sky of EPOS alone, without systematic errors"),
        ("sky_mix", None, "sky simulated anew, all errors"),
        ("sky_mix", "statistical_only", "sky simulated anew, without systematic errors"),
        ("sky_sibyll", None, "sky of SIBYLL, in no simulation, all errors"),
        ("sky_sibyll", "statistical_only", "sky of SIBYLL, without systematic errors"),
    ]
    for kind, inner, words in cases:
        every = [one if inner is None else one[inner] for one in by_kind.get(kind, [])]
        if not every:
            continue
        for quantity, plural in (("fraction", "fractions"), ("flux", "fluxes")):
            counts = [one[quantity] for one in every]
            n = sum(one["n"] for one in counts)
            mean = sum(one["pull"] for one in counts) / n
            width = np.sqrt(sum(one["pull2"] for one in counts) / n - mean**2)
            for level, goal in GOALS.items():
                each = np.array([(one[f"in{level}"], one["n"]) for one in counts])
                rows.append(_row(f"{plural}: {words}", goal, each, f"{width:.2f}", least=False))
    return rows


def _knees(by_kind: dict[str, list[dict[str, Any]]]) -> list[tuple[float, str]]:
    entries = [one["rigidity"] for one in by_kind.get("spectra", []) if "rigidity" in one]
    rows = []
    for k, (level, goal) in enumerate(GOALS.items()):
        if entries:
            each = np.array([(int(one["covers"][k]), 1) for one in entries])
            is_open = np.mean([one["open"][k] for one in entries])
            name = f"rigidity of the knees ({100 * is_open:.0f} % of the {level} % intervals open on a side)"
            rows.append(_row(name, goal, each, "", least=False))
    return rows


def _limits(by_kind: dict[str, list[dict[str, Any]]]) -> list[tuple[float, str]]:
    rows = []
    for kind, every in by_kind.items():
        if not kind.startswith("photons"):
            continue
        truth = every[0]["fraction"]
        if not truth:
            continue
        covers: dict[str, Callable[[dict[str, Any]], bool]] = {
            "limit by CLs, background from data": lambda one, true=truth: one["limit"] >= true,
            "limit by CLs, background from simulation": lambda one, true=truth: one["limit_simulation"] >= true,
            "interval of Feldman and Cousins": lambda one, true=truth: one["interval"][0] <= true <= one["interval"][1],
        }
        for name, inside in covers.items():
            each = np.array([(sum(map(inside, one["limits"])), len(one["limits"])) for one in every])
            rows.append(_row(f"photons, fraction {truth:g}: {name}", 0.9, each, "", least=True))
    return rows


def _words(by_kind: dict[str, list[dict[str, Any]]]) -> list[str]:
    none = by_kind.get("photons_0", [])
    lines = []
    if none:
        all_ = [one for experiment in none for one in experiment["limits"]]
        visited, expected = sum(one["candidates"] for one in all_), sum(one["background"] for one in all_)
        below = np.mean([one["limit"] <= one["expected"] * 1.0001 for one in all_])
        claims = np.mean([one["interval"][0] > 0 for one in all_])
        lines += [
            f"Without photons ({len(none)} skies) {visited:,} candidates are seen where sidebands say {expected:,.1f};",
            f"{100 * below:.0f} % of the limits lie at or below the expected median; the interval of Feldman and",
            f"Cousins leaves zero out in {100 * claims:.1f} % (stated: at most 10 %).",
            "",
        ]
    entries = [one["rigidity"]["found"] for one in by_kind.get("spectra", []) if "rigidity" in one]
    if entries:
        mean, spread = np.mean(entries), np.std(entries)
        lines += [
            f"The common rigidity, true lg R 15.64: mean {mean:.3f} ± {spread / np.sqrt(len(entries)):.3f}, spread",
            f"{spread:.3f} from skies of this size.",
            "",
        ]
    return lines


def _methods(by_kind: dict[str, list[dict[str, Any]]]) -> list[str]:
    every = [one["methods"] for one in by_kind.get("spectra", []) if "methods" in one]
    if not every:
        return []
    lines = [
        f"## Bias of each method, {len(every)} skies",
        "",
        "Found minus true share, mean over energies, in per cent (± one standard error of the mean); last column: mean",
        "absolute error of a share in one energy bin.",
        "",
        f"| method | {' | '.join(COMPOSITION.classes)} | absolute |",
        f"|---|{'---|' * 6}",
    ]  # fmt: skip
    rows = []
    for name in every[0]:
        bias = 100 * np.array([one[name]["bias"] for one in every])
        error = bias.std(axis=0, ddof=1) / np.sqrt(len(bias)) if len(bias) > 1 else np.zeros(5)
        absolute = 100 * np.mean([one[name]["absolute"] for one in every])
        cells = " | ".join(f"{b:+.1f} ± {e:.1f}" for b, e in zip(bias.mean(axis=0), error, strict=True))
        rows.append((-np.abs(bias.mean(axis=0)).max(), f"| {name.replace('_', ' ')} | {cells} | {absolute:.1f} |"))
    return [*lines, *(row for _, row in sorted(rows)), ""]


def _mixtures(by_kind: dict[str, list[dict[str, Any]]]) -> list[str]:
    every = by_kind.get("mixtures", [])
    if not every:
        return []
    one = every[0]
    lines = [
        f"## 1,001 mixtures of {one['events']:,} events",
        "",
        "Mean absolute error of the five shares over the grid of mixtures in steps of a tenth (goal for the unfolded",
        "ones: .03), and that of the worst mixture.",
        "",
        "| method | mean error | worst |",
        "|---|---|---|",
    ]  # fmt: skip
    rows = []
    for name, words in GRID.items():
        values = np.array(one[name])
        error = values.std() / np.sqrt(len(values))
        rows.append((-values.mean(), f"| {words} | {values.mean():.4f} ± {error:.4f} | {values.max():.3f} |"))
    return [*lines, *(row for _, row in sorted(rows)), ""]
