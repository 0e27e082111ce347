"""The page of the closure benchmark: what covers and what does not, worst first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from scoring.uncertainty.resampling import clopper_pearson
from showers.schema import COMPOSITION
from showers.storage.files import atomic_path

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
        "Known skies through the whole analysis: `python benchmarks/physics/closure.py` made every number on this",
        f"page in one run: {size}, one learner, skies of at most {given['events']:,} events,",
        "default world, one seed. Brackets: 95 % intervals, binomial; bins of",
        "one experiment are counted as independent, which they are not quite.",
        "",
        "## Coverage, worst first",
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


def _row(
    name: str, stated: float, hits: int, n: int, experiments: int, width: str, *, least: bool
) -> tuple[float, str]:
    """Return a row and its place: standard deviations of a binomial by which it falls short (or is off)."""
    found = hits / max(n, 1)
    interval = clopper_pearson(hits, n)
    # Estimates of one experiment are correlated: as many independent ones as five a experiment.
    effective = min(n, 5 * experiments) if n > experiments else n
    off = (found - stated) / np.sqrt(stated * (1 - stated) / max(effective, 1))
    text = f"{100 * found:.1f} % [{100 * interval.low:.1f}, {100 * interval.high:.1f}]"
    limit = "at least " if least else ""
    place = off if off < 0 or least else -abs(off) / 2
    return float(place), f"| {name} | {limit}{100 * stated:.0f} % | {text} | {experiments} | {width} |"


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
                hits = sum(one[f"in{level}"] for one in counts)
                rows.append(_row(f"{plural}: {words}", goal, hits, n, len(every), f"{width:.2f}", least=False))
    return rows


def _knees(by_kind: dict[str, list[dict[str, Any]]]) -> list[tuple[float, str]]:
    found = [one["rigidity"] for one in by_kind.get("spectra", []) if "rigidity" in one]
    rows = []
    for k, (level, goal) in enumerate(GOALS.items()):
        if found:
            hits = sum(one["covers"][k] for one in found)
            is_open = np.mean([one["open"][k] for one in found])
            name = f"rigidity of the knees ({100 * is_open:.0f} % of the {level} % intervals open on a side)"
            rows.append(_row(name, goal, hits, len(found), len(found), "", least=False))
    return rows


def _limits(by_kind: dict[str, list[dict[str, Any]]]) -> list[tuple[float, str]]:
    rows = []
    for kind, every in by_kind.items():
        if not kind.startswith("photons"):
            continue
        truth = every[0]["fraction"]
        limits = [one for experiment in every for one in experiment["limits"] if truth > 0]
        if not limits:
            continue
        n, experiments = len(limits), len(every)
        hits = {
            "limit by CLs, background from data": sum(one["limit"] >= truth for one in limits),
            "limit by CLs, background from simulation": sum(one["limit_simulation"] >= truth for one in limits),
            "interval of Feldman and Cousins": sum(one["interval"][0] <= truth <= one["interval"][1] for one in limits),
        }
        for name, count in hits.items():
            rows.append(_row(f"photons, fraction {truth:g}: {name}", 0.9, count, n, experiments, "", least=True))
    return rows


def _words(by_kind: dict[str, list[dict[str, Any]]]) -> list[str]:
    none = by_kind.get("photons_0", [])
    lines = []
    if none:
        all_ = [one for experiment in none for one in experiment["limits"]]
        seen, expected = sum(one["candidates"] for one in all_), sum(one["background"] for one in all_)
        below = np.mean([one["limit"] <= one["expected"] * 1.0001 for one in all_])
        claims = np.mean([one["interval"][0] > 0 for one in all_])
        lines += [
            f"Without photons ({len(none)} skies) {seen:,} candidates are seen where sidebands say {expected:,.1f};",
            f"{100 * below:.0f} % of the limits lie at or below the expected median; the interval of Feldman and",
            f"Cousins leaves zero out in {100 * claims:.1f} % (stated: at most 10 %).",
            "",
        ]
    found = [one["rigidity"]["found"] for one in by_kind.get("spectra", []) if "rigidity" in one]
    if found:
        mean, spread = np.mean(found), np.std(found)
        lines += [
            f"The common rigidity, true lg R 15.64: mean {mean:.3f} ± {spread / np.sqrt(len(found)):.3f}, spread",
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
