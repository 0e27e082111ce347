"""Sections on what the run reached: headline, plain words, learners against what ships."""

from __future__ import annotations

import numpy as np

from report.page import Section, bullets, numbers, paragraph, picture, pictures, table
from report.pictures.learners import learners_picture
from report.pictures.style import as_svg
from report.run import COMBINED
from report.subject import Subject
from report.summary import log_loss, metric_text, plus_minus, short
from scoring.intervals import Interval, Paired, accuracy_interval


def headline(subject: Subject) -> str:
    """Return the boxes at the top: metric, accuracy, log-loss, events."""
    metrics, events = subject.metrics, f"{len(subject.labels):,} test showers"
    guessed = subject.output if subject.is_composition else subject.final.argmax(axis=1)
    hits = accuracy_interval(subject.labels, guessed)
    accuracy = f"{100 * np.mean(guessed == subject.labels):.2f} %"
    loss, loss_span = log_loss(subject.labels, subject.final)
    if subject.is_composition:
        span = Interval(**metrics["intervals"]["mean_fraction_error"])
        first = ("fraction error (lower is better)", f"{metrics['mean_fraction_error']:.4f}", _span(span, "{:.4f}"))
    else:
        span = Interval(**metrics["survival_rates"]["75%"]["interval"])
        left = metrics["survival_rates"]["75%"]["hadron_surviving"]
        remark = f"{_span(span, '')}; {left:,} of {metrics['n_hadron']:,} hadrons"
        first = ("hadron survival at 75 % gamma efficiency", short(metrics["key_metric"]), remark)
    return numbers(
        [
            first,
            ("accuracy", accuracy, f"{100 * hits.low:.2f} to {100 * hits.high:.2f} %, {events}"),
            ("log-loss, nats", f"{loss:.4f}", _span(loss_span, "{:.4f}")),
        ]
    ) + paragraph("Ranges are 95 % intervals from the number of test showers; they hold no systematic error.", "quiet")


def _span(interval: Interval, form: str) -> str:
    low, high = (form.format(v) if form else short(v) for v in (interval.low, interval.high))
    return f"{low} to {high}"


def verdict(found: Paired, better: str, worse: str, unit: str, form: str = ".4f") -> str:
    """Return in words what a paired comparison shows; ``found`` is worse minus better where positive."""
    gap = f"{abs(found.difference):{form}} [{found.interval.low:{form}}, {found.interval.high:{form}}] {unit}"
    if found.interval.low <= 0 <= found.interval.high:
        return f"Between {better} and {worse} the data show no difference: {gap}, p = {found.p_value:.2g}."
    first, second = (better, worse) if found.difference > 0 else (worse, better)
    return f"{first} beats {second} by {gap}, p = {found.p_value:.2g}."


def plain_words(subject: Subject) -> Section:
    """Return the summary in plain language, and what the data do not show."""
    lines = []
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
        form = ".4f" if subject.is_composition else ".2e"
        labels = ", decided labels" if rule == "decided" else ""
        lines.append(f"On the test set, log-loss: {verdict(loss, ours, theirs, 'nats')}")
        lines.append(
            f"On the test set, {subject.metric.name}{labels}: {verdict(metric, ours, theirs, 'of the metric', form)}"
        )
    body = bullets(lines) + "<h3>What is not shown by these data</h3>" + bullets(limits(subject))
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
            "that cannot be checked, and would flatter every system."
        )
    lines.append(
        "Training and test showers come from the same hadronic interaction models. How scores move when nature differs "
        "from the models is not in the intervals."
    )
    lines.append("One seed was trained; how much another seed would change is not shown.")
    thin = [name for name, row in subject.metrics["energy_binned"].items() if row.get("too_few_events")]
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
            f"{', '.join(unclear)}; the log-loss is the sharper measure."
        )
    lines.extend(subject.metrics["warnings"])
    return lines


def learners(subject: Subject) -> Section:
    """Return the comparison of learners, average and stack."""
    label = f"{subject.metric.name} (lower is better)"
    figure = learners_picture(subject.points, label, logarithmic=not subject.is_composition)
    caption = "Test set, 95 % intervals of each system by itself. Paired differences are sharper: see the table."
    if subject.is_composition:
        caption += " Raw: argmax of the posterior; decided: labels by the rule made from held-out posteriors."
    rows: list[tuple[str, ...]] = []
    ours: list[int] = []
    for point, system in zip(subject.points, subject.systems, strict=True):
        hits = accuracy_interval(subject.labels, _hard(subject, system.output, system.log_proba))
        accuracy = float(np.mean(_hard(subject, system.output, system.log_proba) == subject.labels))
        loss = plus_minus(*log_loss(subject.labels, system.log_proba), 4)
        metric, gap = ("", "")
        if (system.name, system.rule) in subject.against_shipped:
            paired, paired_loss = subject.against_shipped[system.name, system.rule]
            metric, gap = _difference(paired, subject.is_composition), _difference(paired_loss, True)
        if system is subject.shipped:
            ours.append(len(rows))
        name = (
            system.name
            if system.rule == "score"
            else f"{system.name}, {'raw' if system.rule == 'argmax' else system.rule}"
        )
        value = metric_text(point.value, point.interval, subject.task)
        rows.append((name, plus_minus(accuracy, hits, 2, 100), loss, value, gap, metric))
    heads = ("system", "accuracy, %", "log-loss, nats", subject.metric.name, "log-loss − shipped", "metric − shipped")
    failed = [row for row in subject.run.manifest.get("learners", []) if row.get("status") == "failed"]
    notes = "".join(paragraph(f"{row['name']} failed and was left out: {row.get('error')}", "warn") for row in failed)
    body = pictures([picture(as_svg(figure, "metric of each system"), caption)]) + table(heads, rows, ours=ours) + notes
    body += paragraph(
        f"Differences are to {subject.shipped_words}, which ships, both by the same rule; the bold row is what "
        "predictions.npz holds.",
        "quiet",
    )
    return Section("learners", "Learners and stack", body)


def _hard(subject: Subject, output: np.ndarray, log_proba: np.ndarray) -> np.ndarray:
    return output if subject.is_composition else log_proba.argmax(axis=1)


def _difference(found: Paired, plain: bool) -> str:
    if plain:
        return f"{found.difference:+.4f} [{found.interval.low:+.4f}, {found.interval.high:+.4f}]"
    return f"{found.difference:+.1e} [{found.interval.low:+.1e}, {found.interval.high:+.1e}]"
