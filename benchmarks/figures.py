"""Draws the figures of the documentation from stored results: ``benchmarks/results/*.md`` to ``docs/pictures/*.svg``.

    python -m benchmarks.figures

Figures are transparent, with text in a grey that is legible on a light and on a dark page.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
from matplotlib.colors import TwoSlopeNorm
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from benchmarks.shared.results import FOLDER, ROOT
from showerstack.report.pictures.style import INK, MARKERS, PALETTE, drawing, new_figure

PICTURES = ROOT / "docs" / "pictures"
GREY = "#808080"
NUMBER = re.compile(r"[-+]?\d+(?:,\d{3})*(?:\.\d+)?(?:e[-+]?\d+)?")


def table(result: str, head: str, after: str = "") -> list[list[str]]:
    """Return the cells of the first table of a stored result whose head begins with some text, below a heading."""
    text = (FOLDER / f"{result}.md").read_text(encoding="utf-8")
    lines = text[text.index(after) :].splitlines()
    start = next(k for k, line in enumerate(lines) if line.startswith(f"| {head}"))
    rows = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


def numbers(cell: str) -> list[float]:
    """Return the numbers in a cell."""
    return [float(text.replace(",", "")) for text in NUMBER.findall(cell)]


def learning_curve() -> Figure:
    """Log-loss against the number of training showers."""
    figure = new_figure(4.2)
    high, low = figure.subplots(2, 1, sharex=True, height_ratios=(1, 1.8))
    name, curves = "", {}
    for cells in table("pretraining", "learner | showers"):
        name = cells[0].strip("`") or name
        curves.setdefault(name, []).append((*numbers(cells[1]), *numbers(cells[2])))
    for k, (learner, (label, colour)) in enumerate(CURVES.items()):
        draw = high if learner.startswith("published") else low
        n, loss, error = zip(*curves[learner], strict=True)
        draw.errorbar(n, loss, error, fmt=f"-{MARKERS[k]}", color=PALETTE[colour], label=label)
    ((_, exact, error),) = curves["exact likelihood"]
    low.axhline(exact, color=INK, linestyle="--", label="exact likelihood")
    low.axhspan(exact - error, exact + error, color=INK, alpha=0.15, linewidth=0)
    high.set(xscale="log", ylabel="log-loss", ylim=(1.03, 1.33), title="Published networks on grids")
    low.set(xlabel="training showers", ylabel="log-loss", ylim=(1.008, 1.098), title="On lateral fits (other scale)")
    for draw in (high, low):
        draw.legend(loc="upper left")
    return figure


CURVES = {
    "published.lenet": ("LeNet (JINST 2024)", 6),
    "published.lenet_wide": ("wide LeNet (benchmark)", 5),
    "catboost": ("CatBoost", 2),
    "mlp": ("MLP", 4),
    "pretrained": ("pretrained", 0),
}
"""Labels and colours of learners, the worst first."""


def learners() -> Figure:
    """Log-loss of each learner against its processor time."""
    figure = new_figure(4.0)
    draw = figure.add_subplot()
    for cells in table("peers", "learner | accuracy", "## composition"):
        name, (loss, error), seconds = cells[0], numbers(cells[2])[:2], numbers(cells[8])[1]
        published = name.startswith("published.")
        colour = PALETTE[0] if name == "pretrained" else PALETTE[6] if published else PALETTE[4]
        draw.errorbar(seconds, loss, error, fmt=MARKERS[1 if published else 0], color=colour)
        if name in NAMED:
            place, side = NAMED[name]
            draw.annotate(name.removeprefix("published."), (seconds, loss), place, textcoords="offset points",
                          fontsize=6.5, color=colour, ha=side)  # fmt: skip
    for label, colour, marker in (
        ("pretrained on 31 million other showers", PALETTE[0], MARKERS[0]),
        ("from scratch", PALETTE[4], MARKERS[0]),
        ("published systems, trained here", PALETTE[6], MARKERS[1]),
    ):
        draw.plot([], [], marker, color=colour, label=label)
    draw.set(xscale="log", xlabel="training, processor seconds", ylabel="log-loss, five classes", ylim=(1.0, 1.37))
    figure.suptitle("15,000 training showers")
    figure.legend(loc="outside lower center", ncols=1)
    return figure


NAMED: dict[str, tuple[tuple[int, int], str]] = {
    "pretrained": ((5, -9), "left"), "physics": ((-4, 5), "right"), "set_transformer": ((-4, -9), "right"),
    "mlp": ((-5, -3), "right"), "catboost": ((-5, -3), "right"), "lightgbm": ((-5, 0), "right"),
    "published.lenet_wide": ((5, 2), "left"), "published.hgb54": ((5, 2), "left"),
    "published.lenet": ((5, -2), "left"), "published.rf5": ((5, -2), "left"),
}  # fmt: skip
"""Where the names of some learners stand, points from their marker."""


def hadronic_models() -> Figure:
    """Bias of a share where nature differs from the simulation."""
    figure = new_figure(3.6)
    draw = figure.add_subplot()
    rows = table("robustness", "trained in | default/qgs", "## Shares")
    names = [cells[0].replace("/", "\n") for cells in rows]
    values = np.array([[numbers(cell)[0] for cell in cells[1:]] for cells in rows])
    image = draw.imshow(values, cmap="RdBu_r", norm=TwoSlopeNorm(0, -8, 8))
    for i, cells in enumerate(rows):
        for j, cell in enumerate(cells[1:]):
            group = cell.strip("*").split()[0]
            text = f"{values[i, j]:+.1f}\n{group}"
            dark = abs(values[i, j]) > 5
            draw.text(j, i, text, ha="center", va="center", fontsize=6.5, color="white" if dark else "black",
                      weight="bold" if cell.startswith("**") else "normal")  # fmt: skip
    draw.set_xticks(range(len(names)), names, fontsize=6.5)
    draw.set_yticks(range(len(names)), names, fontsize=6.5)
    draw.set(xlabel="nature", ylabel="simulation")
    draw.grid(visible=False)
    figure.colorbar(image, ax=draw, label="measured minus true share, %", shrink=0.8)
    return figure


def coverage() -> Figure:
    """How often intervals hold."""
    figure = new_figure(3.6)
    rows = [cells for cells in table("closure", "what | stated") if "scales" in cells[0]]
    names = sorted({cells[0] for cells in rows})
    for k, stated in enumerate((68, 95)):
        draw = figure.add_subplot(1, 2, k + 1)
        draw.axvline(stated, color=INK, linewidth=1)
        for cells in rows:
            if numbers(cells[1])[0] == stated:
                y = names.index(cells[0])
                found, low, high = numbers(cells[2])
                far = not low <= stated <= high
                draw.errorbar(found, y, xerr=[[found - low], [high - found]], fmt=MARKERS[k],
                              color=PALETTE[0 if far else 4])  # fmt: skip
        draw.set_yticks(range(len(names)), [short(name) for name in names] if k == 0 else [])
        draw.set(xlabel="hold the truth, %", title=f"{stated} % intervals", ylim=(-0.6, len(names) - 0.4))
        draw.set_xlim(*((45, 92) if k == 0 else (82, 101)))
    return figure


def known_sky() -> Figure:
    """True and measured fluxes of one simulated data set."""
    figure = new_figure(4.0)
    rows = [cells for cells in table("closure", "lg(E/eV) | group") if cells[3]]
    upper, lower = figure.subfigures(2, 1)
    for part, names in ((upper, ("proton", "helium", "carbon", "silicon", "iron")), (lower, ("light", "heavy", "all"))):
        panels = part.subplots(1, len(names), sharey=True, sharex=True)
        for draw, name in zip(panels, names, strict=True):
            mine = [cells for cells in rows if cells[1] == name]
            low, high = np.array([numbers(cells[0]) for cells in mine]).T
            energy_low, energy_high = 10.0**low, 10.0**high
            steep = 1.7 * (energy_high - energy_low) / (energy_low**-1.7 - energy_high**-1.7)
            true, flux, statistical, total = (
                steep * 1e-19 * np.array([[float(x) for x in cells[2:]] for cells in mine]).T
            )
            draw.hlines(true, low, high, color=INK, linewidth=1.3)
            middle, colour = (low + high) / 2, COLOURS[name]
            draw.errorbar(middle, flux, total, fmt=MARKERS[0], color=colour, elinewidth=0.8, markersize=3.5)
            draw.errorbar(middle, flux, statistical, fmt="none", color=colour, elinewidth=2.5)
            draw.axhline(0, color=INK, linewidth=0.6)
            draw.set(title=name, xlim=(15.1, 16.9), xticks=(15.5, 16.5))
        panels[len(names) // 2].set_xlabel("lg(E/eV)")
        panels[0].set_ylabel("flux x $E^{2.7}$")
    return figure


COLOURS = dict(zip(("proton", "helium", "carbon", "silicon", "iron"), PALETTE, strict=False)) | {
    "light": PALETTE[0], "heavy": PALETTE[4], "all": PALETTE[6],
}  # fmt: skip
"""Of groups and their sums."""


def short(name: str) -> str:
    """Return fewer letters for a row of the coverage."""
    for long, words in (("share of iron", "iron"), ("fractions", "shares"), ("scales ", ""), (",000 events", " k")):
        name = name.replace(long, words)
    return name.replace("1,000 k", "1 M")


def resolution() -> Figure:
    """Resolution of the fits against the energy."""
    figure = new_figure(3.8)
    rows = table("resolution", "showers | events | quantity", "\n## Default world\n")
    for k, (quantity, unit) in enumerate((("core, m", "m"), ("lg Ne", "lg"), ("age", ""), ("lg Nmu", "lg"))):
        draw = figure.add_subplot(2, 2, k + 1)
        chosen = [cells for cells in rows if cells[2] == quantity and cells[0].startswith("lg E")]
        for column, label, number in ((3, "fit", 0), (4, "reconstruction", 1)):
            at, widths = [], []
            for cells in chosen:
                low, high = map(float, cells[0].removeprefix("lg E ").split(".."))
                found = numbers(cells[column].replace("[", "").replace("]", ""))
                at.append((low + high) / 2)
                widths.append(found[:3] if quantity.startswith("core") else found[1:4])
            value, low_end, high_end = np.array(widths).T
            draw.errorbar(at, value, [value - low_end, high_end - value], fmt=f"-{MARKERS[number]}",
                          color=PALETTE[(4, 0)[number]], label=label)  # fmt: skip
        draw.set(title=quantity.split(",")[0], yscale="log", ylabel=unit)
        draw.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        draw.yaxis.set_major_formatter("{x:g}")
        draw.yaxis.set_minor_formatter(NullFormatter())
        if k >= 2:
            draw.set_xlabel("reconstructed lg(E/eV)")
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=2)
    return figure


def survival() -> Figure:
    """Survival of hadrons against the share of gammas that is kept."""
    figure = new_figure(3.0)
    draw = figure.add_subplot()
    rows = table("simulation", "gammas kept | `default`")
    kept = np.array([numbers(cells[0])[0] for cells in rows])
    for column, label in ((1, "world default"), (2, "world gammas")):
        colour, marker = PALETTE[(4, 0)[column - 1]], MARKERS[column - 1]
        for x, cells in zip(kept, rows, strict=True):
            found = numbers(cells[column].replace("[", "").replace(",", " "))
            if cells[column].startswith("<"):
                draw.errorbar(x, found[0], found[0] / 2, uplims=True, fmt=marker, color=colour, fillstyle="none")
            else:
                value, low, high = found[:3]
                draw.errorbar(x, value, [[value - low], [high - value]], fmt=marker, color=colour)
        draw.plot([], [], marker, color=colour, label=label)
    public = [numbers(cells[3].split(",")[0]) for cells in rows]
    draw.plot(kept, [values[0] for values in public], MARKERS[2], color=PALETTE[6], fillstyle="none")
    draw.plot(kept, [values[-1] for values in public], MARKERS[2], color=PALETTE[6], fillstyle="none",
              label="public simulation, lowest and highest published")  # fmt: skip
    draw.set(yscale="log", xlabel="gammas kept, %", ylabel="share of hadrons that survive", xticks=kept)
    draw.legend(loc="upper left")
    return figure


def energy() -> Figure:
    """Bias and resolution of the energy against the true energy."""
    figure = new_figure(2.8)
    rows = table("energy", "true lg E", "## By energy")
    low, high = np.array([numbers(cells[0]) for cells in rows]).T
    bias, value, low_end, high_end = np.array([numbers(cells[2].replace("[", "").replace("]", "")) for cells in rows]).T
    for k, (name, y, error) in enumerate((
        ("bias", bias, None), ("resolution", value, [value - low_end, high_end - value])
    )):  # fmt: skip
        draw = figure.add_subplot(1, 2, k + 1)
        draw.errorbar((low + high) / 2, y, error, (high - low) / 2, fmt=MARKERS[0], color=PALETTE[4])
        if error is None:
            draw.axhline(0, color=INK, linewidth=1)
        draw.set(title=f"{name}, lg E", xlabel="true lg(E/eV)", ylim=(None, None) if error is None else (0, None))
    return figure


def arrays() -> Figure:
    """Core error in spacings, resolution of lg Ne and of the direction at ten arrays."""
    figure = new_figure(4.2)
    rows = table("arrays", "array | spacing")
    y = np.arange(len(rows))[::-1]
    core, sizes, directions = figure.subplots(1, 3, sharey=True, width_ratios=(1.2, 1, 1))
    value, low, high = np.array([numbers(cells[6].replace("[", ""))[:3] for cells in rows]).T
    core.errorbar(value, y, xerr=[value - low, high - value], fmt=MARKERS[0], color=PALETTE[4])
    for column, colour, marker, label in ((7, 4, 0, "electrons"), (9, 0, 1, "muons")):
        there = [k for k, cells in enumerate(rows) if cells[column] != "–"]
        widths = [numbers(rows[k][column])[-1] for k in there]
        sizes.plot(widths, y[there], MARKERS[marker], color=PALETTE[colour], label=label)
    directions.plot([numbers(cells[10])[0] for cells in rows], y, MARKERS[0], color=PALETTE[4])
    names = [cells[0].replace(", ", ",\n", 1) if len(cells[0]) > 18 else cells[0] for cells in rows]
    core.set(yticks=y, yticklabels=names, xlabel="core, spacings", xlim=(0, 0.8))
    sizes.set(xlabel="width, lg", xlim=(0, None))
    directions.set(xlabel="angle, deg", xlim=(0, None))
    core.tick_params(axis="y", labelsize=7)
    figure.legend(*sizes.get_legend_handles_labels(), loc="outside upper center", ncols=2)
    return figure


def any_array() -> Figure:
    """Gain in log-loss of the pretrained network over training from scratch, by spacing and depth."""
    figure = new_figure(2.6)
    axes = figure.subplots()
    rows = [(*numbers(cells[2])[:2], *numbers(cells[6])) for cells in table("any_array_grid", "task | world")]
    for k, depth in enumerate(sorted({depth for _, depth, *_ in rows})):
        spacing, _, gain, error = np.array([row for row in rows if row[1] == depth]).T[:4]
        axes.errorbar(
            spacing * 1.03 ** (k - 1), -gain, yerr=error, fmt=f"{MARKERS[k]}-", color=PALETTE[2 * k],
            label=f"{depth:.0f} g/cm2",
        )  # fmt: skip
    axes.axhline(0.0, color=INK, linewidth=0.6)
    axes.set(xscale="log", xlabel="spacing, m", ylabel="gain in log-loss")
    axes.minorticks_off()
    axes.set_xticks(spacings := sorted({spacing for spacing, *_ in rows}), [f"{spacing:g}" for spacing in spacings])
    figure.legend(*axes.get_legend_handles_labels(), loc="outside upper center", ncols=3)
    return figure


def few_showers() -> Figure:
    """Log-loss against training showers from 0 to 17,000, by array."""
    figure = new_figure(4.4)
    rows = [cells for cells in table("few_showers", "task | world") if cells[0] == "composition"]
    panels = figure.subplots(2, 4, sharex=True).ravel()
    for axes, (_, world, array, none, *cells) in zip(panels, rows, strict=True):
        started, scratch = [(NO_SHOWER, *numbers(none), 0.0)], []
        counts = ((started, FEW_COUNTS), (scratch, SCRATCH_COUNTS))
        found = iter(cells)
        for curve, sizes in counts:
            curve += [(n, *numbers(next(found))[:2]) for n in sizes]
        for curve, colour, marker, label in ((started, 4, 0, "pretrained"), (scratch, 0, 1, "mlp")):
            n, loss, error = np.array(curve).T
            axes.errorbar(n, loss, error, fmt=f"-{MARKERS[marker]}", color=PALETTE[colour], label=label, ms=3)
        top = max(loss for _, loss, _ in scratch + started[1:])
        bottom = min(loss for _, loss, _ in scratch + started)
        axes.set(xscale="log", ylim=(bottom - 0.1 * (top - bottom), top + 0.25 * (top - bottom)))
        axes.set_title(f"{array}{'' if world == 'harder' else f', {world}'}".replace(", ", ",\n", 1), fontsize=6.5)
        axes.minorticks_off()
        axes.set_xticks([NO_SHOWER, 300, 5_000], ["0", "300", "5,000"], fontsize=6)
        axes.tick_params(axis="y", labelsize=6)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper center", ncols=2)
    figure.supxlabel("training showers", fontsize=8)
    figure.supylabel("log-loss", fontsize=8)
    return figure


NO_SHOWER = 25
"""Where no shower at all stands on a logarithmic axis."""
FEW_COUNTS, SCRATCH_COUNTS = (100, 300, 1_000, 5_000), (1_000, 5_000, 17_000)
FIGURES: tuple[Callable[[], Figure], ...] = (
    learning_curve, learners, hadronic_models, coverage, known_sky, resolution, survival, energy,
    arrays, any_array, few_showers,
)  # fmt: skip


def save(figure: Figure, file: Path, title: str) -> None:
    """Write a figure as SVG."""
    figure.savefig(file, transparent=True, metadata={"Date": None, "Creator": None, "Title": title})
    text = re.sub(INK, GREY, file.read_text(encoding="utf-8"), flags=re.IGNORECASE)
    # Coordinates need no more digits; labels, between the tags, do.
    text = re.sub("<[^>]*>", lambda tag: re.sub(r"(\d\.\d\d)\d+", r"\1", tag[0]), text).replace(
        "'DejaVu Sans'", "'DejaVu Sans', Verdana, sans-serif"
    )
    file.write_text("\n".join(line.rstrip() for line in text.splitlines()) + "\n", encoding="utf-8")


def main() -> None:
    """Draw all figures."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    for make in FIGURES:
        with drawing():
            save(make(), PICTURES / f"{make.__name__}.svg", (make.__doc__ or "").rstrip("."))


if __name__ == "__main__":
    main()
