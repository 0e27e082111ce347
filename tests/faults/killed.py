"""Kill one command again and again, each time in a new folder, and start it again there.

``python -m tests.faults.killed COMMAND SOURCE FOLDER moments N``: N kills at random moments of its work;
``... steps STRIDE``: a kill at every STRIDE-th change of a file. Prints how many kills were survived. Not a test by
itself: children are forked, so that each need not import everything, and that wants a parent without threads.
What one command alone needs is imported in its function.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime, tzinfo
from pathlib import Path

import numpy as np

from showerstack.features import build, compute
from showerstack.models.registry import LEARNERS
from showerstack.report.doctor.soundness import check_folder
from showerstack.runtime.context import Context
from showerstack.runtime.files import LOCK_FILE
from showerstack.showers.archives.convert import convert
from showerstack.showers.archives.download import download
from showerstack.showers.schema import COMPOSITION, GAMMA
from showerstack.showers.simulation import blocks, simulate
from showerstack.stacking.config import TableConfig
from showerstack.stacking.training.train import stack
from tests.faults.kills import Step, content, run
from tests.program import pictures_undrawn
from tests.stacking.fakes import FAKES

TIMED = {LOCK_FILE, "manifest.json", "task.json", "config.toml", "run.log"}
"""Files that hold what a step cost, where the run lies, or nothing."""
PATCHES = ExitStack()
"""What stays replaced as long as this program runs."""


def _stack(source: str) -> Step:
    importlib.import_module("lightgbm")  # what a run imports when it is first needed, and so in every child
    options: dict[str, object] = {"preset": "quick", "folds": 2, "workers": 1, "device": "cpu", "test_table": source}
    learners = ("lightgbm", "fake_linear")
    options |= {"learners": learners, "settings": {"lightgbm": {"rounds": 20}}}
    return lambda out: stack(TableConfig(repeats=1, holdout=0.1, run=out, table=Path(source), label="kind", **options))


def _datacheck(source: str) -> Step:
    from showerstack.analysis.datacheck.check import check_data
    from showerstack.report.check_pages import write_check

    place = Path(source)
    PATCHES.enter_context(pictures_undrawn())

    def step(out: Path) -> None:
        out.mkdir(exist_ok=True)
        check = check_data(place / "run", place / "sky", train=place / "train", ctx=Context(workers=1))
        write_check(check, out / "check.html")

    return step


class Still(datetime):
    """A clock that stands, so that files which tell when they were made are the same."""

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> Still:
        """Return the same moment always."""
        return cls(2026, 1, 1, tzinfo=tz)


def _spectra(source: str) -> Step:
    from showerstack.analysis import provenance
    from showerstack.analysis.spectra import knees
    from showerstack.analysis.spectra import run as spectra_run
    from showerstack.analysis.spectra.files import write_spectra
    from showerstack.report.spectra_page import write_spectra_page

    place = Path(source)
    provenance.datetime = Still  # type: ignore[misc]
    PATCHES.enter_context(pictures_undrawn())
    # Many fits, and no file.
    knees.HeldScales.widening = lambda self, fit, place: 1.0
    knees.STEP_GROWTH = 8.0

    def step(out: Path) -> None:
        options = spectra_run.SpectraOptions(
            place / "run", [place / "sky"], "1e7", out, [], edges=(14.9, 15.4, 16.0), zenith_max_deg=30.0
        )
        spectra = spectra_run.measure_spectra(options, Context(workers=1))
        write_spectra(spectra, out)
        write_spectra_page(spectra, out)

    return step


def _pretrain(source: str) -> Step:
    from showerstack.models.pretraining import train
    from tests.models.test_pretraining import SMALL, drawn_here, toy_portion

    train.draw_ahead = drawn_here
    train.draw_portion = toy_portion
    train.time.process_time = lambda: 0.0
    settings = replace(SMALL, showers=240_000, batch_size=400, passes=1)  # two rounds
    return lambda out: train.pretrain(out, settings)


COMMANDS: dict[str, Callable[[str], Step]] = {
    "stack": _stack,
    "features": lambda source: (
        lambda out: build.build_table(source, out, groups=["reconstruction", "size"], ctx=Context(workers=1))
    ),
    "simulate": lambda source: lambda out: simulate(COMPOSITION, out, n_train=400, n_test=40, workers=1),
    "convert": lambda source: lambda out: convert(Path(source), out, COMPOSITION),
    "datacheck": _datacheck,
    "spectra": _spectra,
    "pretrain": _pretrain,
    "download": lambda source: lambda out: download(GAMMA, out, base_url=source),
}


def _run_for(step: Step, out: Path, seconds: float) -> int:
    """Run a step in a child that is killed after a time; return the child's exit status."""
    child = os.fork()
    if child:
        time.sleep(seconds)
        os.kill(child, signal.SIGKILL)  # it is not yet waited for: its number is nobody else's
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    os._exit(_silently(step, out))


def _silently(step: Step, out: Path) -> int:
    try:
        step(out)
    except BaseException as error:
        print(repr(error), file=sys.stderr, flush=True)
        return 1
    return 0


def _outcome(out: Path) -> dict[str, str]:
    """Return the hash of each file that is the same in every run."""
    result = content(out)
    timed = TIMED | ({"checksums.json"} if "manifest.json" in result else set())
    return {name: digest for name, digest in result.items() if Path(name).name not in timed}


def _tries(step: Step, folder: Path, how: str, number: int, whole_s: float) -> Iterator[tuple[Path, bool]]:
    """Yield the folders of runs that were killed, or ended before; and which of both."""
    rng = np.random.default_rng(1)
    kills = k = 0
    while how == "steps" or kills < number:
        out = folder / f"killed-{k}"
        status = run(step, out, k * number) if how == "steps" else _run_for(step, out, rng.uniform(0, 0.8 * whole_s))
        assert status in (0, -signal.SIGKILL), f"ended with {status} instead of being killed"
        if how == "steps" and status == 0:
            return
        kills += status != 0
        k += 1
        assert k < 20 * number + 1000 * (how == "steps"), f"only {kills} kills came before the end"
        yield out, status != 0


def main(command: str, source: str, folder: Path, how: str, number: int) -> int:
    """Kill the command, start it again, compare; return the number of kills."""
    LEARNERS.update(FAKES)
    blocks.PRIMARIES_PER_BLOCK = 512  # small, for speed: the same in all children
    build.SHARD_EVENTS = 16  # many: most of the time files are being written
    compute.chunk_size = lambda device: 16
    step = COMMANDS[command](source)
    if how == "steps" or number > 1:
        assert run(step, folder / "first") == 0  # compiles what is not compiled yet: times of the others are alike
    began = time.monotonic()
    assert run(step, folder / "whole") == 0
    whole_s = time.monotonic() - began
    expected = _outcome(folder / "whole")
    kills = 0
    for out, killed in _tries(step, folder, how, number, whole_s):
        assert run(step, out) == 0, f"{command} does not go on in {out}"
        result = _outcome(out)
        assert result == expected, f"{out}: {sorted(name for name, _ in set(result.items()) ^ set(expected.items()))}"
        for made in (out, *out.iterdir()):
            assert not (made / "checksums.json").exists() or not check_folder(made)[1]
        kills += killed
    return kills


if __name__ == "__main__":
    print(main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), sys.argv[4], int(sys.argv[5])))
