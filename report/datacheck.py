"""The page of a data check: the verdict first, then the tests, then pictures of what differs."""

from __future__ import annotations

from pathlib import Path

from analysis.datacheck.check import TESTS, DataCheck, as_json
from analysis.datacheck.distributions import ENERGY_EDGES
from analysis.datacheck.words import verdict
from report.page.markup import Section, bullets, numbers, page, paragraph, picture, pictures, table
from report.pictures.datacheck import distribution_picture, stations_picture, tails_picture, undefined_share
from report.pictures.style import as_svg
from showers.schema import InputError
from showers.storage.files import atomic_path, write_json

DRAWN = 8
"""Features that are drawn, each once, in the energy bin where it differs most."""


def write_check(check: DataCheck, out: Path) -> Path:
    """Write the page, and its numbers beside it as JSON.

    Raises
    ------
    InputError
        If ``out`` is not the name of an HTML file.
    """
    if out.suffix.lower() not in (".html", ".htm"):
        raise InputError(f"{out}: name an .html file")
    sections = [_tests(check), _features(check), _events(check), _stations(check), _order(check)]
    lead = paragraph(verdict(check), "warn" if check.raised else "") + numbers(
        [
            ("events under the cuts", f"{check.n_events:,}", f"of {check.n_all:,}"),
            ("simulated events", f"{check.n_simulation:,}", f"worth {check.fitted.effective:,.0f} after weighting"),
            ("AUC", f"{check.classifier.auc:.3f}", f"{check.classifier.low:.3f} to {check.classifier.high:.3f} (95 %)"),
        ]
    )
    lead += bullets(check.remarks) if check.remarks else ""
    with atomic_path(out) as temporary:
        temporary.write_text(page(f"Data check of {check.data.name}", lead, sections), encoding="utf-8")
    write_json(out.with_suffix(".json"), as_json(check))
    return out


def energy_range(number: int) -> str:
    """Return the name of an energy bin."""
    if number == 0:
        return f"below {ENERGY_EDGES[0]:g}"
    if number == len(ENERGY_EDGES):
        return f"above {ENERGY_EDGES[-1]:g}"
    return f"{ENERGY_EDGES[number - 1]:g} to {ENERGY_EDGES[number]:g}"


def _tests(check: DataCheck) -> Section:
    limit = check.alarms / len(check.p_values)
    rows = [[TESTS[name], f"{p:.2g}", "alarm" if name in check.raised else ""] for name, p in check.p_values.items()]
    stressed = [k for k, row in enumerate(rows) if row[2]]
    fractions = zip(check.classes, check.fitted.fractions, strict=True)
    body = table(["test", "p, adjusted within the test", ""], rows, ours=stressed)
    body += paragraph(
        f"Each test gives an alarm below {limit:.2g}, so that {100 * check.alarms:g} % of samples from the "
        "simulation's own world would raise one or more. The simulation was weighted to the data's composition and "
        f"spectra ({', '.join(f'{name} {share:.2f}' for name, share in fractions)}; for weighting only, not a result).",
        "quiet",
    )
    return Section("tests", "Tests", body)


def _features(check: DataCheck) -> Section:
    rows = [
        [d.feature, energy_range(d.energy_bin), f"{d.shift:+.4g}", f"{d.sigmas:+.3f}", f"{d.p:.2g}"]
        for d in check.differences[:15]
    ]
    drawn: list[str] = []
    seen: set[str] = set()
    for d in check.differences:
        if d.feature in seen or len(drawn) == DRAWN:
            continue
        seen.add(d.feature)
        data, simulation = undefined_share(check.histograms, d)
        undefined = (
            f"; undefined in {100 * data:.1f} % (simulation {100 * simulation:.1f} %)" if data + simulation else ""
        )
        caption = f"{d.feature}, lg(E/eV) {energy_range(d.energy_bin)}: p = {d.p:.2g}{undefined}"
        drawn.append(picture(as_svg(distribution_picture(check.histograms, d), caption), caption))
    away = [[name, f"{100 * share:.1f} %"] for name, share in check.classifier.giving_away]
    body = table(["feature", "lg(E/eV)", "mean shift", "in standard deviations", "p, adjusted"], rows)
    body += (
        pictures(drawn)
        + "<h3>Features by which the classifier separates data and simulation</h3>"
        + table(["feature", "gain"], away)
    )
    return Section("features", "Features", body)


def _events(check: DataCheck) -> Section:
    tails = check.tails
    drawn = tails_picture([t.quantile for t in tails], [t.expected for t in tails], [t.seen for t in tails])
    caption = (
        "Events farther from the training sample than quantiles of simulated events that did not define the distance"
    )
    rows = [[f"{d:.1f}", folder, str(row)] for d, folder, row in check.farthest[:10]]
    body = picture(as_svg(drawn, caption), caption)
    body += "<h3>Farthest events</h3>" + table(["distance", "folder", "row"], rows)
    return Section("events", "Single events", body)


def _stations(check: DataCheck) -> Section:
    caption = "How often stations are hit, data over simulation; empty where there is no detector"
    return Section("stations", "Stations", picture(as_svg(stations_picture(check.stations), caption), caption))


def _order(check: DataCheck) -> Section:
    body = table(["quantity", "p that rows are in random order"], [[n, f"{p:.2g}"] for n, p in check.order.items()])
    if check.run_p.size:
        worst = check.run_p.argsort()[:10]
        rows = []
        for f in worst:
            run = int(abs(check.run_pulls[:, f]).argmax())
            name = check.histograms.names[f]
            rows.append([name, f"{check.run_p[f]:.2g}", check.run_names[run], f"{check.run_pulls[run, f]:+.1f}"])
        body += "<h3>From run to run</h3>" + table(["feature", "p, adjusted", "run farthest off", "its pull"], rows)
    return Section("order", "Order of rows and runs", body)
