"""Where everything is in the folder of a run, and the folder of one fit."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from showerstack.runtime.arrays import array_names, read_arrays
from showerstack.runtime.checksums import CHECKSUMS_FILE, Checksums, write_checksums
from showerstack.runtime.errors import InputError
from showerstack.runtime.files import check_name, read_json, write_json, write_npz
from showerstack.runtime.stated import stated_as
from showerstack.showers.schema import TASKS
from showerstack.stacking.chain import Fit
from showerstack.stacking.estimates import Posterior
from showerstack.stacking.stated import FitHistory, FitRecord

LOG_PROBA, ESTIMATES = "log_proba", "truth"
"""Arrays of a fit's predictions: log-probabilities, and estimates of true quantities where the learner gives any."""
OWN_FOLD, HOLDOUT, TEST = "held_out", "outer", "test"
"""What a fit predicts: its own fold, the holdout, the test events. Each is a file ``<name>.npz``."""
TASK_FILE = "task.json"
HISTORY_FILE = "history.json"
"""Validation log-loss by epoch or round, of learners that have such a thing."""
NOT_OF_THE_LEARNER = (*(f"{part}.npz" for part in (OWN_FOLD, HOLDOUT, TEST)), TASK_FILE, HISTORY_FILE, CHECKSUMS_FILE)
"""Files in the folder of a fit that its learner does not read: its predictions, and how it came about."""
AVERAGE = "average"
"""Folder of the network with the mean weights of a learner's fits, beside those of the fits."""
LEARNERS, META, OOF = "learners", "meta", "oof"
TABLE_FOLDER = "table"
"""Folder of a run with the tables that its fits read."""
SCALES_FILE, POOL_FILE, RULES_FILE, ESTIMATES_FILE = (
    f"{META}/{name}.json" for name in ("calibration", "stack", "decision", "estimates")
)
"""The chain: temperatures; pool, shipped system, fits; rules of answers; errors of estimates where there are any."""
CHAIN_FILES = (SCALES_FILE, POOL_FILE, RULES_FILE)
"""Files of the chain that every run has."""
SCORES_FILE = f"{META}/held_out_scores.npz"
"""Of a gamma run: labels, scores and, where there are any, groups and importance weights of the judged events."""
LABELS_TABLE = f"{TABLE_FOLDER}/train-labels.parquet"
COLUMNS_FILE = f"{TABLE_FOLDER}/columns.json"
"""Of a run on a table: what each column is."""
PREDICTIONS_TABLE = "predictions.parquet"
"""Predictions of a run on a table."""
METRICS_FILE = "metrics_table.json"
"""Scores of a run on a table."""
TABLE_TEST_FILE = "metrics_table_test.json"
"""Its scores on a test table with labels."""
REPORT_FILE, CARD_FILE = "report.html", "model_card.md"
MADE_LATER = (REPORT_FILE, CARD_FILE, TABLE_TEST_FILE, *(f"metrics_{task}.json" for task in TASKS))
"""Files that scoring and reporting write into a finished run, as often as one likes."""
CHECKPOINTS = "checkpoints"
"""Folder with the state of unfinished fits; gone when all are done."""
FOLDS_FILE, EVALUATION_FILE = "folds.npy", "in_evaluation.npy"
"""Folds by repetition; which training events are of the kind that is scored."""
CONFIG_FILE = "config.toml"
START_FILE = ".start"
"""In a folder that is at work: a number that no other start of any run has."""


def fit_path(learner: str, fit: Fit) -> str:
    """Return where one of a learner's fits is in a run; refuse a name that leads out of it."""
    return f"{LEARNERS}/{check_name(learner, Path(LEARNERS))}/{AVERAGE if fit is None else f'fold-{fit}'}"


@dataclass(frozen=True)
class FitFolder:
    """The folder of one of a learner's fits. It has checksums of its own: until the run is finished, they show what was
    damaged or exchanged between a kill and the next start."""

    path: Path

    def problem(self) -> str | None:
        """Return what is wrong with a finished fit; None if nothing is, or if it is not there."""
        if not self.path.exists():
            return None
        try:
            problems = Checksums.open(self.path, required=(TASK_FILE, f"{OWN_FOLD}.npz")).problems()
        except InputError as error:
            return str(error)
        return problems[0] if problems else None

    @property
    def is_there(self) -> bool:
        """Whether the fit has ever been finished."""
        return (self.path / TASK_FILE).exists()

    def record(self) -> FitRecord:
        """Return how the fit came about."""
        file = Checksums.open(self.path).path(TASK_FILE)
        return stated_as(FitRecord, read_json(file), file)

    def read(self, part: str, *, estimates: bool = False) -> np.ndarray:
        """Read the (n, C) log-probabilities of :data:`OWN_FOLD` or another part, or the (n, T, 2) estimates."""
        array = ESTIMATES if estimates else LOG_PROBA
        return read_arrays(Checksums.open(self.path).path(f"{part}.npz"), array)[array]

    def has_estimates(self) -> bool:
        """Return whether the fit has estimated true quantities."""
        return ESTIMATES in array_names(Checksums.open(self.path).path(f"{OWN_FOLD}.npz"))

    def write(self, part: str, posterior: Posterior) -> None:
        """Write what :meth:`read` reads."""
        arrays = {LOG_PROBA: posterior.log_proba, ESTIMATES: posterior.estimates}
        write_npz(self.path / f"{part}.npz", **{name: z for name, z in arrays.items() if z is not None})

    def write_history(self, losses: list[float]) -> None:
        """Write the validation log-loss by epoch or round."""
        write_json(self.path / HISTORY_FILE, FitHistory(valid_log_loss=losses).as_json())

    def finish(self, record: FitRecord | None = None) -> None:
        """Write how the fit came about, and the checksums of all that is there."""
        if record is not None:
            write_json(self.path / TASK_FILE, record.as_json())
        write_checksums(self.path)
