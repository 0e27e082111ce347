"""Sections on what the run reached: plain words, learners against what ships."""

from __future__ import annotations

from report.page.markup import Section, bullets, numbers, paragraph, picture, side_by_side, table
from report.pictures.learners import learners_picture
from report.pictures.style import as_svg
from report.reading.run import COMBINED, ONE_ANSWER
from report.reading.subject import Subject
from report.registry import report_of
from report.terminal.summary import mean_loss
from report.terminal.text import metric_text, plus_minus
from scoring import scoring_of
from scoring.uncertainty.intervals import Paired


def headline(subject: Subject) -> str:
    """Return the boxes at the top (metric, accuracy or what stands for it, mean loss) and what the metric means."""
    told, scoring = report_of(subject.task), scoring_of(subject.task)
    loss, span = mean_loss(scoring.losses(subject.labels, subject.final, subject.output))
    boxes = told.boxes(subject)
    name = f"{scoring.loss_name}, {scoring.loss_unit}"
    boxes.append((name, f"{loss:.4f}", f"{span.low:.4f} to {span.high:.4f}"))
    n = f"{len(subject.labels):,} test showers"
    limits = f"{n}. Ranges are 95 % intervals from their number; they hold no systematic error."
    return numbers(boxes) + (paragraph(told.meaning) if told.meaning else "") + paragraph(limits, "quiet")


def verdict(found: Paired, better: str, worse: str, unit: str, form: str = ".4f") -> str:
    """Return in words what a paired comparison shows; ``found`` is worse minus better where positive."""
    gap = f"{abs(found.difference):{form}} [{found.interval.low:{form}}, {found.interval.high:{form}}] {unit}"
    if found.interval.low <= 0 <= found.interval.high:
        return f"Between {better} and {worse} the data show no difference: {gap}, p = {found.p_value:.2g}."
    first, second = (better, worse) if found.difference > 0 else (worse, better)
    return f"{first} beats {second} by {gap}, p = {found.p_value:.2g}."


def plain_words(subject: Subject) -> Section:
    """Return the summary in plain language, and what the data do not show."""
    scoring, lines = scoring_of(subject.task), []
    gate = subject.run.manifest.get("gate", {})
    if gate:
        reason = str(gate.get("reason", ""))
        judged = subject.run.manifest.get("judged", {}).get("on")
        where = "held-out events" if judged is None else f"the {judged}" if judged == "outer holdout" else judged
        lines.append(f"Shipped: {subject.shipped_words}. On {where} of the training set, {reason}.")
    ours, rule = subject.shipped_words, subject.shipped.rule
    # A stack that ships is compared with its best learner, a learner that ships with the stack that does not.
    other = subject.best_learner if subject.shipped.name == COMBINED[-1] else COMBINED[-1]
    if (other, rule) in subject.against_shipped:
        metric, loss = subject.against_shipped[str(other), rule]
        theirs = "the stack" if other == COMBINED[-1] else str(other)
        form = ".2e" if subject.metric.logarithmic else ".4f"
        labels = ", decided labels" if rule == "decided" else ""
        lines.append(f"On the test set, {scoring.loss_name}: {verdict(loss, ours, theirs, scoring.loss_unit)}")
        lines.append(
            f"On the test set, {subject.metric.name}{labels}: {verdict(metric, ours, theirs, 'of the metric', form)}"
        )
    shown = f"<div><h3>What is shown</h3>{bullets(lines)}</div>"
    body = side_by_side(shown, "<h3>What is not shown by these data</h3>" + bullets(limits(subject)))
    return Section("summary", "In plain words", body)


def limits(subject: Subject) -> list[str]:
    """Return what a reader must not conclude from this run."""
    lines = []
    if subject.simulated:
        model, seed = subject.dataset.source.get("model", "?"), subject.dataset.source.get("seed", "?")
        lines.append(
            f"The showers are simulated (model {model}, seed {seed}): the numbers compare methods with each other; "
            "what is reached on KASCADE data is not measured here and these numbers belong in no table with published "
            "ones."
        )
    else:
        lines.append(
            "In the public pre-split files a shower reused at several core positions may be in training and test; "
            "that cannot be checked, and would make every score too good."
        )
    lines.append(
        "Training and test showers come from the same hadronic interaction models. How scores move when nature differs "
        "from the models is not in the intervals."
    )
    lines.append("One seed was trained; how much another seed would change is not shown.")
    thin = [name for name, row in subject.metrics.get("energy_binned", {}).items() if row.get("too_few_events")]
    if thin:
        lines.append(f"Energy bins {', '.join(thin)} hold too few events of some class for a number.")
    unclear = [
        name
        for (name, rule), (metric, _) in subject.against_shipped.items()
        if rule == subject.shipped.rule and metric.interval.low <= 0 <= metric.interval.high
    ]
    if unclear:
        lines.append(
            f"By {subject.metric.name} alone this test set cannot tell {subject.shipped_words} from "
            f"{', '.join(unclear)}; the {scoring_of(subject.task).loss_name} is the sharper measure."
        )
    lines.extend(subject.metrics["warnings"])
    return lines


def learners(subject: Subject) -> Section:
    """Return the comparison of learners, average and stack."""
    told, scoring = report_of(subject.task), scoring_of(subject.task)
    label = f"{subject.metric.name} (lower is better)"
    figure = learners_picture(subject.points, label, logarithmic=subject.metric.logarithmic)
    caption = "Test set, 95 % intervals of each system by itself. Paired differences are sharper: see the table."
    caption += told.legend
    rows: list[tuple[str, ...]] = []
    ours: list[int] = []
    for point, system in zip(subject.points, subject.systems, strict=True):
        beside = told.beside(subject.labels, system.log_proba, system.output)
        loss = plus_minus(*mean_loss(subject.losses(system)), 4)
        metric, gap = ("", "")
        if (system.name, system.rule) in subject.against_shipped:
            paired, paired_loss = subject.against_shipped[system.name, system.rule]
            metric, gap = _difference(paired, subject.metric.logarithmic), _difference(paired_loss)
        if system is subject.shipped:
            ours.append(len(rows))
        name = (
            system.name
            if system.rule in ONE_ANSWER
            else f"{system.name}, {'raw' if system.rule == 'argmax' else system.rule}"
        )
        value = metric_text(point.value, point.interval, subject.metric)
        rows.append((name, beside.plus_minus, loss, value, gap, metric))
    loss_head = f"{scoring.loss_name}, {scoring.loss_unit}"
    heads = (
        "system", beside.head, loss_head, subject.metric.name, f"{scoring.loss_name} − shipped", "metric − shipped",
    )  # fmt: skip
    failed = [row for row in subject.run.manifest.get("learners", []) if row.get("status") == "failed"]
    notes = "".join(paragraph(f"{row['name']} failed and was left out: {row.get('error')}", "warn") for row in failed)
    against = paragraph(
        f"Differences are to {subject.shipped_words}, which ships, both by the same rule; the bold row is what "
        "predictions.npz holds.",
        "quiet",
    )
    body = side_by_side(
        picture(as_svg(figure, "metric of each system"), caption), against + _on_the_same_events(subject)
    )
    body += table(heads, rows, ours=ours) + notes
    return Section("learners", "Learners and stack", body)


def _on_the_same_events(subject: Subject) -> str:
    """Return in words, system by system, what the paired comparison with what ships shows."""
    lines = []
    form = ".1e" if subject.metric.logarithmic else ".4f"
    for (name, rule), (metric, _) in subject.against_shipped.items():
        if rule == subject.shipped.rule:
            clear = metric.interval.low > 0 or metric.interval.high < 0
            what = ("worse" if metric.difference > 0 else "better") if clear else "not to be told apart"
            gap = f"{metric.difference:+{form}}" if metric.difference else "0"
            lines.append(f"{name}: {what} ({gap})")
    return paragraph(f"By {subject.metric.name}, against {subject.shipped_words}:") + bullets(lines) if lines else ""


def _difference(found: Paired, logarithmic: bool = False) -> str:
    form = "+.1e" if logarithmic else "+.4f"
    return f"{found.difference:{form}} [{found.interval.low:{form}}, {found.interval.high:{form}}]"
