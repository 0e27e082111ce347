"""The report of a run on showers: one self-contained HTML file with results, importance of features, single showers.

It begins with plain words, then sets learners against what ships.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from markupsafe import Markup

from showerstack.features.catalogue import CATALOGUE
from showerstack.features.table import FeatureTable, default_path
from showerstack.models.registry import LEARNERS
from showerstack.report.display import event_picture, read_showers
from showerstack.report.explain import explain_line
from showerstack.report.pictures.learners import gain_picture, learners_picture, shuffle_picture
from showerstack.report.pictures.style import as_svg
from showerstack.report.run_sections import (
    column_gains,
    group_gains,
    how_it_was_made,
    ranked_columns,
    shuffled_losses,
)
from showerstack.report.shared.markup import (
    Section,
    bullets,
    group,
    heading,
    joined,
    make_sections,
    numbers,
    paragraph,
    picture,
    pictures,
    side_by_side,
    table,
    write_page,
)
from showerstack.report.shared.subject import EvaluatedRun, mean_loss
from showerstack.report.shared.text import difference_text, metric_text, p_text, pooled_words, signed
from showerstack.report.task_sections import page_of
from showerstack.runtime.context import Bars, silent
from showerstack.runtime.errors import InputError, escaped
from showerstack.runtime.files import check_target
from showerstack.scoring.metrics.level import LEVEL_TEXT
from showerstack.scoring.metrics.losses import event_losses
from showerstack.scoring.metrics.paired import Paired
from showerstack.scoring.tasks import scoring_of
from showerstack.scoring.tasks.text import plus_minus
from showerstack.stacking.chain import COMBINED
from showerstack.stacking.events import ShowerEvents
from showerstack.stacking.layout import REPORT_FILE
from showerstack.stacking.prediction.explain import explain_events


def headline(evaluated: EvaluatedRun) -> Markup:
    """Return the boxes at the top (metric, accuracy or what stands for it, mean loss) and what the metric means."""
    scoring = scoring_of(evaluated.task)
    loss, span = mean_loss(scoring.losses(evaluated.labels, evaluated.final, evaluated.output), evaluated.truth)
    boxes = page_of(evaluated.task).boxes(evaluated)
    boxes.append((scoring.loss_head, f"{loss:.4f}", f"[{span.low:.4f}, {span.high:.4f}]"))
    n = f"{len(evaluated.labels):,} test showers"
    limits = f"{n}. Brackets are {LEVEL_TEXT} intervals from their number, without systematic errors."
    words = " ".join(filter(None, (scoring.meaning, scoring.published if evaluated.of_kascade else "")))
    return numbers(boxes) + (paragraph(words) if words else Markup()) + paragraph(limits, "quiet")


def verdict(paired: Paired, better: str, worse: str, unit: str, logarithmic: bool = False) -> str:
    """Return in words what a paired comparison shows; ``paired`` is worse minus better where positive."""
    unit = f" {unit}".rstrip()
    low, high = paired.interval.low, paired.interval.high
    if difference_text(paired, logarithmic) == "0":
        return f"{better} and {worse} are level{'' if logarithmic else f': less than 0.0001{unit} apart'}."
    shown: Callable[[float], str] = signed if logarithmic else "{:z.4f}".format
    gap = f"{shown(abs(paired.difference)).lstrip('+')} [{shown(low)}, {shown(high)}]{unit}"
    if low <= 0 <= high:
        return f"between {better} and {worse} the data show no difference: {gap}, {p_text(paired.p_value)}."
    first, second = (better, worse) if paired.difference > 0 else (worse, better)
    return f"{first} beats {second} by {gap}, {p_text(paired.p_value)}."


def plain_words(evaluated: EvaluatedRun) -> Section:
    """Return the summary in plain language, and what the data do not show."""
    scoring, manifest = scoring_of(evaluated.task), evaluated.run.manifest
    where, reason = manifest.judged.on, manifest.gate.reason
    where = f"the {where}" if where == "outer holdout" else f"{where} predictions"
    lines = [f"Used for new showers: {evaluated.shipped_words}. On {where} of the training set, {reason}."]
    ours = evaluated.shipped_words
    # A stack that predicts is compared with its best learner, a learner that predicts with the stack.
    other = evaluated.best_learner if evaluated.shipped.name == COMBINED[-1] else COMBINED[-1]
    if other in evaluated.against_shipped and len(manifest.finished) > 1:
        metric, loss = evaluated.against_shipped[other]
        theirs = "the stack" if other == COMBINED[-1] else other
        logarithmic = evaluated.metric.logarithmic
        lines.append(f"On the test set, {scoring.loss_name}: {verdict(loss, ours, theirs, scoring.loss_unit)}")
        lines.append(
            f"On the test set, {evaluated.metric.name}: {verdict(metric, ours, theirs, 'of the metric', logarithmic)}"
        )
    shown = group(heading("What is shown"), bullets(lines))
    body = side_by_side(shown, heading("What is not shown by these data") + bullets(limits(evaluated)))
    return Section("summary", "In plain words", body)


def limits(evaluated: EvaluatedRun) -> list[str]:
    """Return what a reader must not conclude from this run."""
    lines, ours = [], evaluated.of_kascade
    if evaluated.simulated:
        model, seed = evaluated.dataset.source.get("model", "?"), evaluated.dataset.source.get("seed", "?")
        lines.append(
            f"The showers are simulated (model {model}, seed {seed}): the numbers compare methods with each other; "
            + (
                "what is reached on KASCADE data is not measured here and these numbers belong in no table with "
                "published ones."
                if ours
                else f"what the array {evaluated.dataset.array.name} reaches on real showers is not measured here."
            )
        )
    elif ours:
        lines.append(
            "In the public pre-split files a shower reused at several core positions may be in training and test; "
            "that cannot be checked, and would make every score too good."
        )
    lines.append(
        "Training and test showers come from the same hadronic interaction models. How scores move when nature differs "
        "from the models is not in the intervals."
    )
    lines.append("One seed was trained; how much another seed would change is not shown.")
    thin = [name for name, row in evaluated.metrics.get("energy_binned", {}).items() if row.get("too_few_events")]
    if thin:
        lines.append(f"Energy bins {', '.join(thin)} hold too few events of some class for a number.")
    unclear = [
        name
        for name, (metric, _) in evaluated.against_shipped.items()
        if metric.interval.low <= 0 <= metric.interval.high
    ]
    if unclear:
        lines.append(
            f"By {evaluated.metric.name} alone this test set cannot distinguish {evaluated.shipped_words} from "
            f"{', '.join(unclear)}; the {scoring_of(evaluated.task).loss_name} is the sharper measure."
        )
    lines.extend(evaluated.metrics["warnings"])
    return lines


def learners(evaluated: EvaluatedRun) -> Section:
    """Return the comparison of learners, average and stack."""
    scoring = scoring_of(evaluated.task)
    label = f"{evaluated.metric.name} (lower is better)"
    figure = learners_picture(evaluated.systems, label, logarithmic=evaluated.metric.logarithmic)
    caption = f"Test set, {LEVEL_TEXT} intervals of each system by itself. Paired differences are sharper: see the "
    caption += "table."
    rows = []
    for one in evaluated.systems:
        metric, gap = "", ""
        if one.name in evaluated.against_shipped:
            paired, paired_loss = evaluated.against_shipped[one.name]
            metric, gap = difference_text(paired, evaluated.metric.logarithmic), difference_text(paired_loss)
        value, loss = metric_text(one.value, one.interval, evaluated.metric), plus_minus(one.loss, one.loss_interval, 4)
        rows.append((one.name, one.beside.plus_minus, loss, value, gap, metric))
    used = evaluated.shipped.name
    heads = (
        "system", evaluated.shipped.beside.head, scoring.loss_head, evaluated.metric.name,
        f"{scoring.loss_name} − {used}", f"metric − {used}",
    )  # fmt: skip
    failed = [row for row in evaluated.run.manifest.learners if row.status == "failed"]
    notes = joined(paragraph(f"{row.name} failed and was left out: {row.error}", "warn") for row in failed)
    against = paragraph(
        f"± is one standard error, [a, b] a {LEVEL_TEXT} interval. Differences are to {evaluated.shipped_words}, which "
        "predicts new showers; the bold row is what predictions.npz holds.",
        "quiet",
    )
    if pooled := pooled_words(evaluated.run.manifest):
        against += paragraph(f"{pooled}.", "quiet")
    body = side_by_side(
        picture(as_svg(figure, "metric of each system"), caption), against + _on_the_same_events(evaluated)
    )
    ours = [one.name for one in evaluated.systems].index(used)
    body += table(heads, rows, ours=[ours]) + notes
    return Section("learners", "Learners and stack", body)


def _on_the_same_events(evaluated: EvaluatedRun) -> Markup:
    """Return in words, system by system, what the paired comparison with the system in use shows."""
    lines = []
    shown: Callable[[float], str] = signed if evaluated.metric.logarithmic else "{:+z.4f}".format
    for name, (metric, _) in evaluated.against_shipped.items():
        is_clear = metric.interval.low > 0 or metric.interval.high < 0
        what = ("worse" if metric.difference > 0 else "better") if is_clear else "no difference is shown"
        lines.append(f"{name}: {what} ({shown(metric.difference) if metric.difference else '0'})")
    if not lines:
        return Markup()
    return paragraph(f"By {evaluated.metric.name}, against {evaluated.shipped_words}:") + bullets(lines)


EACH = 2
"""Showers of each kind in the gallery."""
RANKED = 20
"""Features in the ranking."""


def importance(evaluated: EvaluatedRun) -> Section | None:
    """Return gain and permutation importance by group of features."""
    gains = column_gains(evaluated.run)
    figures = []
    if gains:
        caption = (
            "Share of the splitting gain by group of features, mean over folds. Gain favours groups of many columns."
        )
        by_group = {name: group_gains(gain) for name, gain in gains.items()}
        figures.append(picture(as_svg(gain_picture(by_group), "gain by feature group"), caption))
    if shuffled := shuffled_losses(evaluated):
        name, losses = shuffled
        caption = (
            f"{name}, fold 0, up to 2,000 test showers: log-loss lost when all columns of a group are taken from other "
            f"showers, {LEVEL_TEXT} intervals. Correlated groups share the loss: a small value does not mean that a "
            "group is useless."
        )
        figures.append(picture(as_svg(shuffle_picture(losses), "permutation importance"), caption))
    if not figures:
        return None
    rows = []
    for name, (mean, shares) in ranked_columns(gains, RANKED).items():
        known = CATALOGUE.get(name)
        words = (known.unit, known.meaning) if known else ("", "")
        rows.append((name, f"{mean:.1f}", f"{min(shares):.1f} to {max(shares):.1f}", *words))
    body = pictures(figures)
    if rows:
        heads = ("feature", "gain, %", "by learner", "unit", "meaning")
        body += heading(f"The {len(rows)} features of the largest gain") + table(heads, rows)
        body += paragraph("Correlated features share their gain.", "quiet")
    return Section("importance", "What the learners look at", body)


def chosen_events(labels: np.ndarray, log_proba: np.ndarray) -> dict[str, list[int]]:
    """Return which showers the gallery shows: most confident (of different predictions), most wrong, most ambiguous.

    By true classes (N,) and log-probabilities (N, C). Wrong are those that are said to be of another class. No
    ambiguous one is shown twice.
    """
    guessed, top = log_proba.argmax(axis=1), log_proba.max(axis=1)
    confident: list[int] = []
    for event in np.argsort(-top, kind="stable"):
        if guessed[event] not in guessed[confident]:
            confident.append(int(event))
        if len(confident) == EACH:
            break
    by_loss = np.argsort(-event_losses(log_proba, labels), kind="stable")
    wrong = [int(event) for event in by_loss[(guessed != labels)[by_loss]][:EACH]]
    entropy = -(np.exp(log_proba) * log_proba).sum(axis=1)
    by_entropy = np.argsort(-entropy, kind="stable")
    ambiguous = [int(event) for event in by_entropy[~np.isin(by_entropy, wrong + confident)][:EACH]]
    return {"most confident": confident, "most wrong": wrong, "most ambiguous": ambiguous}


def gallery(evaluated: EvaluatedRun) -> Section:
    """Return event displays of telling showers."""
    classes = evaluated.task.classes
    usable = np.flatnonzero(evaluated.dataset.usable)
    chosen = chosen_events(evaluated.labels[usable], evaluated.final[usable])
    figures = []
    named = [(kind, int(usable[event])) for kind, events in chosen.items() for event in events]
    showers = read_showers(evaluated.dataset, [event for _, event in named])
    explained = _explained(evaluated, [event for _, event in named])
    for (kind, event), shower in zip(named, showers, strict=True):
        posterior = np.exp(evaluated.final[event])
        predicted = classes[int(posterior.argmax())]
        # tiny probabilities must not read as zero
        of_truth = f"{posterior[evaluated.labels[event]]:.3g}"
        title = (
            f"{kind}: true {classes[evaluated.labels[event]]}, given {of_truth}; said {predicted} {posterior.max():.3g}"
        )
        drawn = as_svg(event_picture(shower, title), f"event {event}, {kind}")
        figures.append(picture(drawn, f"Event {event} of the test set.{explained.get(event, '')}"))
    note = paragraph(
        "Maps: deposits of the stations, open circles silent ones; cross: fitted core, with a line toward the azimuth. "
        "Below: densities in the shower plane. Markers are means over rings with standard errors (silent stations "
        "count as zero), dots single stations. The e/gamma detectors see electrons and muons (full line); near the "
        "axis electrons punch through to the muon detectors (shaded).",
        "quiet",
    )
    if not chosen["most wrong"]:
        note += paragraph("None of the test showers is said to be of another class than it is.", "quiet")
    return Section("gallery", "Single showers", pictures(figures) + note)


def _explained(evaluated: EvaluatedRun, events: list[int]) -> dict[int, str]:
    """Return what moved the scores of events; nothing where the run's feature table or a learner is gone."""
    folder = default_path(evaluated.truth.folder)
    try:
        FeatureTable.open(folder)
    except InputError:
        return {}
    if not set(evaluated.run.chain.needed) <= set(LEARNERS):
        return {}
    source = ShowerEvents(evaluated.truth.folder, folder, evaluated.task)
    results = explain_events(evaluated.run, source, events)
    return {event: f" {explain_line(result)}" for event, result in zip(events, results, strict=True)}


def write_report(run: Path, data: Path, *, bars: Bars = silent) -> Path:
    """Write ``RUN/report.html`` from a finished run and the labelled test set of ``data``.

    Parameters
    ----------
    run
        Run folder.
    data
        Folder that holds ``{task}_test``.
    bars
        Opens a progress bar.

    Returns
    -------
    The file.

    Raises
    ------
    InputError
        If the run or the test set cannot be read, they do not belong together, or the folder cannot be written.
    """
    check_target(Path(run) / REPORT_FILE, (".html",))
    evaluated = EvaluatedRun.read(run, data)
    drawn = () if evaluated.task.target else (gallery,)
    parts = (plain_words, learners, *page_of(evaluated.task).sections, *drawn, importance)
    sections = make_sections(parts, evaluated, bars=bars)
    sections += how_it_was_made(evaluated.run, evaluated.dataset.source)
    of_array = f"showers of array {evaluated.dataset.array.name}"
    of_array = f"protocol {evaluated.dataset.protocol}" if evaluated.of_kascade else of_array
    kind = "simulated showers" if evaluated.simulated else of_array
    lead = paragraph("; ".join(filter(None, (kind, escaped(evaluated.run.manifest.started)))), "quiet")
    title = f"{escaped(evaluated.run.name)}: {scoring_of(evaluated.task).title.lower()}"
    return write_page(evaluated.run.report, title, lead + headline(evaluated), sections)
