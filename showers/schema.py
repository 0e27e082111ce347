"""The vocabulary of the benchmark: tasks, classes, file names, columns and units.

Every other package takes these names from here; nothing in this module reads a file.
"""

from __future__ import annotations

from dataclasses import dataclass

MATRICES_FILE = "matrices.npy"
SCALARS_FILE = "features.npy"
GROUPS_FILE = "groups.npy"
AGE_FILE = "age.npy"
PART_FILE = "part.npy"
SOURCE_FILE = "source.json"
TRUTH_FILE = "truth.parquet"
CORE_X_FILE = "core_x_m.npy"
CORE_Y_FILE = "core_y_m.npy"
TIMES_FILE = "times.npy"
"""Measured events only: reconstructed core (float32, m) and UTC time (float64, seconds since 1970)."""
ORDER_FILE = "order.npy"
"""Where the rows were shuffled: the row that each event has in the published split, which no learner may see."""


class InputError(ValueError):
    """What the user gave cannot be used. Entry points print the message as one line and exit with code 2.

    The message names the file (or option), the column and the first offending row where there is one,
    and says what would be right.
    """


@dataclass(frozen=True)
class Scalar:
    """One reconstructed quantity of ``features.npy``."""

    name: str
    unit: str
    meaning: str


SCALARS: tuple[Scalar, ...] = (
    Scalar("E", "lg(E/eV)", "reconstructed primary energy"),
    Scalar("Ze", "deg", "reconstructed zenith angle"),
    Scalar("Az", "deg", "reconstructed azimuth angle"),
    Scalar("Ne", "lg", "reconstructed electron number, lg N_e"),
    Scalar("Nmu", "lg", "reconstructed muon number, lg N_mu"),
)
SCALAR_NAMES: tuple[str, ...] = tuple(s.name for s in SCALARS)
AGE = Scalar("Age", "1", "reconstructed shower age (only where the protocol has it)")


@dataclass(frozen=True)
class Task:
    """A classification problem: its name, its classes in label order, and where its labels are.

    Parameters
    ----------
    name
        Short name used in file names and on the command line.
    classes
        Class names; label ``k`` of the label file means ``classes[k]``.
    label_file
        Name of the label file inside a dataset folder; ``None`` for tables that carry a label column.
    """

    name: str
    classes: tuple[str, ...]
    label_file: str | None = None

    def __post_init__(self) -> None:
        if len(self.classes) < 2:
            raise InputError(f"task {self.name!r} needs at least 2 classes, got {len(self.classes)}")
        if len(set(self.classes)) != len(self.classes):
            raise InputError(f"task {self.name!r} has repeated class names: {', '.join(self.classes)}")

    @property
    def n_classes(self) -> int:
        """Number of classes."""
        return len(self.classes)


COMPOSITION = Task("composition", ("proton", "helium", "carbon", "silicon", "iron"), "labels_composition.npy")
GAMMA = Task("gamma", ("gamma", "hadron"), "labels_gamma.npy")
TASKS: dict[str, Task] = {task.name: task for task in (COMPOSITION, GAMMA)}


def task_named(name: str) -> Task:
    """Return the benchmark task called ``name``.

    Raises
    ------
    InputError
        If there is no such task.
    """
    try:
        return TASKS[name]
    except KeyError:
        raise InputError(f"unknown task {name!r}: choose one of {', '.join(TASKS)}") from None
