"""What people see of a study of robustness: lines on the terminal, and a page."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from analysis.robustness.result import Cell, Robustness
from analysis.robustness.study import ALONE
from report.page.markup import Section, bullets, page, paragraph, picture, pictures, table
from report.pictures.robustness import matrix_picture
from report.pictures.style import as_svg
from showers.schema import COMPOSITION
from showers.storage.files import atomic_path

PAGE_FILE = "robustness.html"


def robustness_text(found: Robustness) -> str:
    """Return a line for every training and place: accuracy, log-loss against home, and largest bias of a share."""
    lines = []
    for one in found.cells:
        training, on, tested, accuracy, loss, bias = _row(one)
        lines.append(
            f"{training} ({on}), tested on {tested}: accuracy {accuracy} %, log-loss {loss}, share of {bias} %"
        )
    return "\n".join(lines)


HEADS = ("training", "on", "tested on", "accuracy, %", "log-loss - home", "largest bias of a share, %")


def _row(one: Cell) -> tuple[str, ...]:
    low, high = one.accuracy_interval
    worst = int(np.abs(one.bias).argmax())
    against = one.against_home
    return (
        one.training, one.trained_on, one.tested_on, f"{100 * one.accuracy:.1f} [{100 * low:.1f}, {100 * high:.1f}]",
        f"{against.difference:+.4f} [{against.interval.low:+.4f}, {against.interval.high:+.4f}]",
        f"{COMPOSITION.classes[worst]} {100 * one.bias[worst]:+.1f} ± {100 * one.bias_error[worst]:.1f}",
    )  # fmt: skip


def write_robustness_page(found: Robustness) -> Path:
    """Write ``OUT/robustness.html`` and return its path."""
    file = found.options.out / PAGE_FILE
    sections = [_matrix(found), _remedies(found), _shares(found), _differences(found)]
    with atomic_path(file) as temporary:
        temporary.write_text(page("Robustness", "", sections), encoding="utf-8")
    return file


def _matrix(found: Robustness) -> Section:
    cells = [one for one in found.cells if one.training == ALONE]
    names = [place.name for place in found.options.places]
    at = {(one.trained_on, one.tested_on): one for one in cells}
    loss = np.array([[at[a, b].log_loss.difference - at[b, b].log_loss.difference for b in names] for a in names])
    bias = np.array([[100 * np.abs(at[a, b].bias).max() for b in names] for a in names])
    figures = [
        picture(as_svg(matrix_picture(loss, names, "log-loss lost, nats", "{:+.3f}"), "log-loss lost"),
                "Log-loss minus that of a training in the tested place."),
        picture(as_svg(matrix_picture(bias, names, "largest bias of a share, %", "{:.1f}"), "bias of shares"),
                "Largest bias of a group's share. On the diagonal: what statistics alone make."),
    ]  # fmt: skip
    return Section("matrix", "Trained here, tested there", pictures(figures) + table(HEADS, map(_row, cells)))


def _remedies(found: Robustness) -> Section:
    home = found.options.places[0].name
    rows = [_row(one) for one in found.cells if one.training != ALONE]
    lines = [
        f"Left out: {', '.join(found.differing) or 'nothing: no feature tells home from the other places'}.",
        f"Jitter: a copy of every training shower with its sizes changed by {found.options.jitter:g} in lg.",
        "A mix has as many showers as home; for a test elsewhere it leaves the tested place out.",
    ]
    note = paragraph(f"Log-loss against the training on {home} alone, same showers, 95 % intervals.")
    return Section(
        "remedies", "What helps in other places, and what it costs at home", table(HEADS, rows) + note + bullets(lines)
    )


def _shares(found: Robustness) -> Section:
    rows = []
    for one in found.cells:
        biases = [f"{100 * b:+.1f} ± {100 * e:.1f}" for b, e in zip(one.bias, one.bias_error, strict=True)]
        rows.append((one.training, one.trained_on, one.tested_on, *biases))
    note = paragraph(
        "Found minus true share in per cent, by the likelihood checked with the training place's own test showers; "
        "± one standard error."
    )
    return Section(
        "shares", "Biases of shares", table(("training", "on", "tested on", *COMPOSITION.classes), rows) + note
    )


def _differences(found: Robustness) -> Section:
    rows = [(name, f"{a:.4f} [{low:.4f}, {high:.4f}]") for name, (a, low, high) in found.auc.items()]
    note = paragraph(
        "Area under the curve of boosted trees between showers of home and of the place, same classes and spectrum "
        "thrown; 0.5 means that they cannot be told apart."
    )
    return Section("differences", "Can home be told from the other places?", table(("place", "AUC, 95 %"), rows) + note)
