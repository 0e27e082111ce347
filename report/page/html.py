"""The report of a run: one self-contained HTML file."""

from __future__ import annotations

from html import escape
from pathlib import Path

from report.page.markup import page
from report.reading.subject import Subject
from report.registry import report_of
from report.sections import events, results
from report.sections import run as run_sections
from report.task import Part
from showers.execution.progress import Bars, silent
from showers.execution.terminal import escaped
from showers.storage.files import atomic_path

REPORT_FILE = "report.html"


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
        If the run or the test set cannot be read, or they do not belong together.
    """
    subject = Subject.read(run, data)
    parts = _parts(subject)
    sections = []
    with bars("report", "parts") as progress:
        for k, part in enumerate(parts):
            progress(k, len(parts), part.__name__)
            found = part(subject)
            if found is not None:
                sections.append(found)
        progress(len(parts), len(parts))
    kind = "simulated showers" if subject.simulated else f"protocol {subject.dataset.protocol}"
    lead = f'<p class="quiet">{escape("; ".join([kind, *run_sections.made(subject)]))}</p>'
    title = f"{escaped(subject.run.name)}: {report_of(subject.task).title.lower()}"
    file = Path(run) / REPORT_FILE
    with atomic_path(file) as temporary:
        temporary.write_text(page(title, lead + results.headline(subject), sections), encoding="utf-8")
    return file


def _parts(subject: Subject) -> list[Part]:
    return [
        results.plain_words,
        results.learners,
        *report_of(subject.task).sections,
        *(() if subject.task.target else (events.gallery,)),
        events.importance,
        run_sections.choices,
        run_sections.training,
        run_sections.cost,
        run_sections.provenance,
    ]
