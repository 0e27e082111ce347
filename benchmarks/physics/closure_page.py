"""The tables of the closure benchmark: what covers and what does not, worst first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from showerstack.scoring.metrics.intervals import clopper_pearson
from showerstack.showers.schema import COMPOSITION

GOALS = {"68": 0.6827, "95": 0.95}
GRID = {
    "labels": "decided labels as they are", "clipped": "matrix inverse, clipped (as published)",
    "inverse": "matrix inverse", "likelihood": "likelihood of the posteriors",
    "checked": "likelihood, checked by simulation (ours)",
}  # fmt: skip


LG_RIGIDITY, CHANGE_OF_INDEX = float(np.log10(4.4e15)), 0.4


def tables(done: list[dict[str, Any]], given: dict[str, Any]) -> str:
    """Return the tables of finished experiments as Markdown."""
    by_kind: dict[str, list[dict[str, Any]]] = {}
    for one in done:
        by_kind.setdefault(one["kind"], []).append(one)
    coverage = [*_coverage(by_kind), *_limits(by_kind)]
    coverage.sort(key=lambda row: row[0])
    size = f"{given['train']:,} training and {given['test']:,} other showers of each task"
    lines = [
        "Known simulated data sets through the whole analysis:",
        f"{size}, learner `{given['learner']}`, default world, one seed.",
        "Brackets: 95 % intervals over experiments, whose bins are correlated.",
        *([given["note"]] if given.get("note") else []),
        "",
        *_again(by_kind),
        *_knees(by_kind),
        "## Coverage, sorted by deviation",
        "",
        "| what | stated | found | experiments | pull width |",
        "|---|---|---|---|---|",
        *(row[1] for row in coverage),
        "",
        *_words(by_kind),
        *_plateau(by_kind),
        *_mixtures(by_kind),
    ]  # fmt: skip
    return "\n".join(lines)


KINDS = {
    "drawn": "folded, scales of energy, muons and electrons drawn and fitted",
    "exact": "folded, scales exact",
}


def _order(kind: str) -> tuple[int, int]:
    """Return where a kind of skies stands in tables: by method, then by size."""
    name, _, events = kind.partition("_")
    return list(KINDS).index(name) if name in KINDS else len(KINDS), int(events) if events.isdigit() else 0


def _knees(by_kind: dict[str, list[dict[str, Any]]]) -> list[str]:
    """Return the table of the common rigidity."""
    rows = []
    for kind in sorted(by_kind, key=_order):
        every = [one for one in by_kind[kind] if not one.get("refused") and "covers" in one.get("rigidity", {})]
        if kind.split("_")[0] not in KINDS or not every:
            continue
        words = KINDS[kind.split("_")[0]]
        away = np.array([one["rigidity"]["lg_rigidity"] for one in every]) - LG_RIGIDITY
        n = len(away)
        spread = away.std(ddof=1) if n > 1 else np.nan
        cells = [words, f"{np.mean([one['events'] for one in every]):,.0f}", str(n),
                 f"{away.mean():+.3f} ± {spread / np.sqrt(n):.3f}", f"{spread:.3f}"]  # fmt: skip
        error = [one["rigidity"].get("error", np.nan) for one in every]
        cells.append(f"{np.median(error):.3f}" if np.isfinite(error).all() else "")
        for k in range(len(GOALS)):
            hits = sum(bool(one["rigidity"]["covers"][k]) for one in every)
            exact = clopper_pearson(hits, n)
            cells.append(f"{100 * hits / n:.0f} [{100 * exact.low:.0f}, {100 * exact.high:.0f}]")
        is_open = np.mean([one["rigidity"]["open"][1] for one in every])
        cells.append(f"{100 * is_open:.0f}")
        chi2 = [one["chi2"] for one in every if "ndf" in one]
        cells.append(f"{np.mean(chi2):.0f} / {every[0]['ndf']}" if chi2 else "")
        rows.append(f"| {' | '.join(cells)} |")
    if not rows:
        return []
    refused = sum(bool(one.get("refused")) for every in by_kind.values() for one in every)
    return [
        "## The common rigidity of the knees",
        "",
        f"True lg R {LG_RIGIDITY:.3f}. Covered: per cent of the 68 and 95 % intervals; open: 95 % intervals without a",
        f"limit on a side. {refused} fits were refused and are left out.",
        "",
        "| method | events | data sets | bias | rms | stated | covers, 68 % | covers, 95 % | open, % | chi2 / ndf |",
        "|---|---|---|---|---|---|---|---|---|---|",
        *rows,
        "",
    ]


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
    for kind in sorted(by_kind, key=_order):
        name, _, size = kind.partition("_")
        if name not in ("drawn", "exact"):
            continue
        every = [one for one in by_kind[kind] if not one["refused"]]
        words = f"scales {name}, {int(size):,} events"
        for quantity, plural in (("flux", "fluxes"), ("fraction", "fractions"), ("iron", "share of iron")):
            counts = [one[quantity] for one in every]
            n = sum(one["n"] for one in counts)
            if not n:
                continue
            mean = sum(one["pull"] for one in counts) / n
            width = np.sqrt(sum(one["pull2"] for one in counts) / n - mean**2)
            for level, goal in GOALS.items():
                each = np.array([(one[f"in{level}"], one["n"]) for one in counts])
                rows.append(_row(f"{plural}, {words}", goal, each, f"{width:.2f}", least=False))
    return rows


SCALES = ("energy", "muons", "electrons")


TWO_WIDTHS = "one scale off by 2 widths"
AGAIN = {"again": "", "steep": " (steep spectrum)", "large": " (8 x simulation)"}
"""Kinds of skies of showers simulated again, with words for their number of events."""


def _nature(one: dict[str, Any]) -> str:
    """Return what is off in a sky."""
    off = [name for name, x in zip(SCALES, one["scales"], strict=True) if x]
    if len(off) > 1:
        return "all scales drawn"
    return f"{off[0]} off by 2 widths" if off else "as simulated"


def _again_groups(by_kind: dict[str, list[dict[str, Any]]]) -> list[tuple[str, str, list[dict[str, Any]]]]:
    """Return what is off, words on events, and the skies, by kind of skies of showers simulated again."""
    result = []
    kinds = [(name, int(events)) for name, _, events in (kind.partition("_") for kind in by_kind) if name in AGAIN]
    for name, events in sorted(kinds, key=lambda kind: (list(AGAIN).index(kind[0]), kind[1])):
        natures: dict[str, list[dict[str, Any]]] = {"all scales drawn": [], "as simulated": []}
        for one in by_kind[f"{name}_{events}"]:
            if not one["refused"]:
                natures.setdefault(_nature(one), []).append(one)
        natures[TWO_WIDTHS] = [one for nature, every in natures.items() if nature.endswith("widths") for one in every]
        result += [(nature, f"{events:,}{AGAIN[name]}", every) for nature, every in natures.items() if every]
    return result


def _of_sets(values: Any) -> str:
    """Return the mean in per cent of values of data sets (n,), with its standard error."""
    each = 100 * np.asarray(values, dtype=np.float64)
    return f"{each.mean():.0f}" + (f" ± {each.std(ddof=1) / np.sqrt(len(each)):.0f}" if len(each) > 1 else "")


def _again(by_kind: dict[str, list[dict[str, Any]]]) -> list[str]:
    """Return the tables of skies whose showers were simulated again with other scales."""
    groups = _again_groups(by_kind)
    if not groups:
        return []
    rows, knees = [], []
    for nature, size, every in groups:
        cells = [nature, size, str(len(every))]
        for quantity in ("flux", "ideal", "noisy", "fraction", "all"):
            with_it = [one for one in every if quantity in one]  # kept skies of earlier runs lack the noisy one
            held = [[one[quantity][f"in{level}"] / one[quantity]["n"] for one in with_it] for level in GOALS]
            is_ideal = quantity in ("ideal", "noisy")
            words = [f"{100 * np.mean(each):.0f}" if is_ideal else _of_sets(each) for each in held if each]
            cells.append(", ".join(words))
        less = [one["flux"]["in68"] / one["flux"]["n"] - one["ideal"]["in68"] / one["ideal"]["n"] for one in every]
        cells.insert(5, _of_sets(less))
        pulls = [one["flux"] for one in every]
        cells.append(f"{np.sqrt(sum(one['pull2'] for one in pulls) / sum(one['n'] for one in pulls)):.2f}")
        cells.append(f"{100 * np.mean([one['all']['error'] for one in every]):.0f} %")
        cells.append(f"{np.median([one['chi2_of_truth'] for one in every]):.0f}")
        rows.append(f"| {' | '.join(cells)} |")
        knees.append(_knee_row(nature, size, every))
    return [
        "## Showers simulated again with other scales",
        "",
        "Per cent of the 68 and 95 % intervals that hold the truth, ± one standard error over data sets. Ideal: what a",
        "linear fit with true derivatives and the same information would hold; more: fluxes less ideal at 68 %, set by",
        "set. With noise: an ideal fit with the noise of this fit's response, and errors that state it. Chi-square: of",
        "the 20 true fluxes with the full covariance, median.",
        "",
        "| nature | events | data sets | fluxes | ideal | more | with noise | shares | all particles | pull width "
        "| error of all particles | chi-square |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
        *rows,
        "",
        "## Knees of showers simulated again",
        "",
        f"The common rigidity (true lg R {LG_RIGIDITY:.3f}) by its profile, and the change of the index (true",
        f"{CHANGE_OF_INDEX:g}) by its standard error: bias, rms and median stated error; how often 68 and 95 % hold.",
        "",
        "| nature | events | data sets | lg R: bias | rms | stated | holds | change: bias | rms | stated | holds |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
        *knees,
        "",
        *_energy_shift(groups),
    ]


def _knee_row(nature: str, words: str, every: list[dict[str, Any]]) -> str:
    """Return a row of the table of knees."""
    cells = [nature, words, str(len(every))]
    for name, key, true in (("rigidity", "lg_rigidity", LG_RIGIDITY), ("change", "value", CHANGE_OF_INDEX)):
        away = np.array([one[name][key] for one in every]) - true
        error = np.array([one[name]["error"] for one in every])
        inside = np.array([np.abs(away) < z * error for z in (1.0, 1.96)])
        if name == "rigidity":
            inside = np.array([one[name]["covers"] for one in every]).T
        spread = away.std(ddof=1) if len(away) > 1 else np.nan
        cells += [f"{away.mean():+.3f} ± {spread / np.sqrt(len(away)):.3f}", f"{spread:.3f}",
                  f"{np.median(error):.3f}", ", ".join(_of_sets(one) for one in inside)]  # fmt: skip
    return f"| {' | '.join(cells)} |"


def _energy_shift(groups: list[tuple[str, str, list[dict[str, Any]]]]) -> list[str]:
    """Return by how much the knee moves between energies off by +2 and -2 widths, four widths of 0.04 in lg E."""
    lines = []
    for nature, words, every in groups:
        if not nature.startswith("energy"):
            continue
        up, down = (
            [one["rigidity"]["lg_rigidity"] for one in every if one["scales"][0] * sign > 0] for sign in (1, -1)
        )
        if min(len(up), len(down)) > 1:
            error = np.sqrt(np.var(up, ddof=1) / len(up) + np.var(down, ddof=1) / len(down))
            lines.append(f"* {words}: {np.mean(up) - np.mean(down):+.3f} ± {error:.3f}")
    return (
        ["From energies 2 widths too low to 2 too high lg R moves by (0.16 expected):", "", *lines, ""] if lines else []
    )


def _plateau(by_kind: dict[str, list[dict[str, Any]]]) -> list[str]:
    """Return how well primaries are recovered where only accepted events are known."""
    every = by_kind.get("plateau", [])
    if not every:
        return []
    cells = [f"{r:.3f} ± {e:.3f}" for r, e in zip(every[0]["ratio"], every[0]["error"], strict=True)]
    return [
        "## Primaries recovered from the plateau",
        "",
        "Recovered over counted, lg E 15.3 to 17, as for converted archives, of which accepted events alone are known.",
        "",
        f"| {' | '.join(COMPOSITION.classes)} |",
        f"|{'---|' * len(cells)}",
        f"| {' | '.join(cells)} |",
        "",
    ]


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
            f"Without photons ({len(none)} data sets) {visited:,} candidates are seen where sidebands say",
            f"{expected:,.1f}; {100 * below:.0f} % of the limits lie at or below the expected median; the interval of",
            f"Feldman and Cousins leaves zero out in {100 * claims:.1f} % (stated: at most 10 %).",
            "",
        ]
    return lines


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
