"""The vocabulary of the benchmark: tasks, classes, file names, columns and units.

Every other package takes these names from here; nothing in this module reads a file.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from showerstack.runtime.errors import InputError

if TYPE_CHECKING:  # the commands' help needs no NumPy
    import numpy as np
    from numpy.typing import ArrayLike

MATRICES_FILE = "matrices.npy"
SIMULATION = "showers.simulation"
CONVERSION = "converted from raw files"
GENERATORS = (SIMULATION, CONVERSION)
"""What ``source.json`` names as generator of the sets that are written here."""
SCALARS_FILE = "features.npy"
GROUPS_FILE = "groups.npy"
AGE_FILE = "age.npy"
OWN_LABELS_FILE = "labels_mass_groups.npy"
"""Labels of mass groups that are not the benchmark's: numbers in the order of ``source.json``'s entry ``groups``."""
WEIGHT_FILE = "weight.npy"
"""Importance weights of gamma sets with rare hadrons. They tell classes apart: nothing that predicts reads them."""
PART_FILE = "part.npy"
SOURCE_FILE = "source.json"
TRUTH_FILE = "truth.parquet"
CORE_X_FILE = "core_x_m.npy"
CORE_Y_FILE = "core_y_m.npy"
TIMES_FILE = "times.npy"
"""Measured events only: reconstructed core (float32, m) and UTC time (float64, seconds since 1970)."""
ARRIVAL_FILE = "arrival_ns.npy"
"""Arrival times by station (N, rows, columns) float16, ns, as archives have them; NaN where they are not finite."""
LEFT_OUT_FILE = "left_out.csv"
"""Rows that cannot be used, with file, column and value: not trained on; in test sets the prior is their posterior."""
ORDER_FILE = "order.npy"
"""Where the rows were shuffled: the row that each event has in the published split, which no learner may see."""
MANIFEST_FILE = "manifest.json"
FIRST_LOOK = "first look"
"""With what the configuration's hash of predictions begins that were made without training, by pretrained weights."""
PREDICTIONS_FILE = "predictions.npz"
LOG_FILE = "run.log"
"""In a run folder: what was logged while the run was made, with tracebacks of failed fits."""
SUBMISSION_FILE = "metadata.yaml"
"""In a folder that is handed in."""
EXPORT_FILE = "export.json"
"""In a folder of exported fits: what follows them."""


@dataclass(frozen=True)
class Scalar:
    """One reconstructed quantity of ``features.npy``."""

    name: str
    unit: str
    meaning: str


SCALARS: tuple[Scalar, ...] = (
    Scalar("E", "lg(E/eV)", "reconstructed primary energy"),
    Scalar("Ze", "deg", "reconstructed zenith angle"),
    Scalar("Az", "deg", "reconstructed azimuth angle of the origin, from +x towards +y"),
    Scalar("Ne", "lg", "reconstructed electron number, lg N_e"),
    Scalar("Nmu", "lg", "reconstructed muon number, lg N_mu"),
)
SCALAR_NAMES: tuple[str, ...] = tuple(s.name for s in SCALARS)
AGE = Scalar("Age", "1", "reconstructed shower age (only where the protocol has it)")
ABSENT = "absent"
"""Entry of ``source.json``: reconstructed quantities that a set does not have; ``features.npy`` holds NaN for them."""
RANGES = {
    "E": (10.0, 22.0), "Ze": (0.0, 90.0), "Az": (-720.0, 720.0), "Ne": (0.0, 12.0), "Nmu": (0.0, 12.0),
    "Age": (-10.0, 10.0),
}  # fmt: skip
"""Where reconstructed quantities of air showers can lie; others are in other units, or damaged."""


@dataclass(frozen=True)
class TargetQuantity:
    """A quantity to be estimated for every shower.

    Learners see it as classes: bins of the target, or of what a reconstructed scalar leaves of it, with equal numbers
    of training events. The estimate is the mean of the posterior over the bins, its error the posterior's width.
    """

    name: str
    """Array of the estimates in ``predictions.npz``, beside ``<name>_error``; column of ``truth.parquet``."""
    unit: str
    meaning: str
    limits: tuple[float, float]
    """Where true values can lie; others are in other units, or damaged."""
    close: float
    """A difference below which an estimate counts as right where two systems are compared event by event."""
    reference: str | None = None
    """Reconstructed scalar that estimates the same quantity, from which the bins are counted."""
    raw: str | None = None
    """Column of the raw archives' true quantities."""


@dataclass(frozen=True)
class Task:
    """What is asked of a shower: classes in label order or the bins of a target, and where the truth is.

    Parameters
    ----------
    name
        Short name used in file names and on the command line.
    classes
        Class names; label ``k`` of the label file means ``classes[k]``.
    label_file
        Name of the label file inside a dataset folder; ``None`` for tables that carry a label column.
    primaries
        Whose showers are simulated and converted for it: ``composition`` or ``gamma``; ``None``: nobody's.
    target
        What is estimated; ``None`` where the classes themselves are asked for. Labels are then float32 true values.
    class_output
        Array of ``predictions.npz`` that is scored where classes are asked for: class numbers, or scores.
    numbers
        Label of each class in files, where some of the task's classes are left out (:meth:`among`); empty: 0 to C - 1.
    """

    name: str
    classes: tuple[str, ...]
    label_file: str | None = None
    primaries: str | None = None
    target: TargetQuantity | None = None
    class_output: str = "predictions"
    numbers: tuple[int, ...] = ()
    masses: tuple[tuple[int, ...], ...] = ()
    """Of mass groups: mass numbers of the nuclei that belong to each class."""

    def __post_init__(self) -> None:
        if len(self.classes) < 2:
            raise InputError(f"task {self.name!r} needs at least 2 classes, got {len(self.classes)}")
        if len(set(self.classes)) != len(self.classes):
            raise InputError(f"task {self.name!r} has repeated class names: {', '.join(self.classes)}")

    @property
    def n_classes(self) -> int:
        """Number of classes."""
        return len(self.classes)

    @property
    def labels(self) -> tuple[int, ...]:
        """Label of each class in files."""
        return self.numbers or tuple(range(self.n_classes))

    @property
    def label_words(self) -> str:
        """These labels, in words."""
        if not self.numbers:
            return f"0..{self.n_classes - 1}"
        return ", ".join(f"{label} ({name})" for label, name in zip(self.labels, self.classes, strict=True))

    def with_classes(self, classes: Iterable[str]) -> Task:
        """Return the task with some of its classes, in its own order."""
        wanted = set(classes)
        if unknown := wanted.difference(self.classes):
            raise InputError(f"task {self.name!r} has no class {sorted(unknown)[0]!r}, but {', '.join(self.classes)}")
        kept = [k for k, name in enumerate(self.classes) if name in wanted]
        if len(kept) == self.n_classes:
            return self
        masses = tuple(self.masses[k] for k in kept if self.masses)
        names, numbers = tuple(self.classes[k] for k in kept), tuple(self.labels[k] for k in kept)
        return replace(self, classes=names, numbers=numbers, masses=masses)

    def among(self, labels: np.ndarray) -> Task:
        """Return the task with those of the five mass groups of which a set has showers; others need all classes."""
        if self.name != "composition" or self.has_own_groups:
            return self
        there = [name for name, label in zip(self.classes, self.labels, strict=True) if (labels == label).any()]
        return self.with_classes(there) if len(there) > 1 else self

    @property
    def has_own_groups(self) -> bool:
        """Whether mass groups are others than the benchmark's."""
        return self.label_file == OWN_LABELS_FILE

    @property
    def ln_masses(self) -> np.ndarray:
        """Mean ln A of each mass group's nuclei, (C,)."""
        return mean_ln_masses(self.masses)

    def class_of_mass(self, mass: ArrayLike) -> np.ndarray:
        """Return class numbers of mass numbers (N,): of the group of the nucleus with the nearest ln A."""
        import numpy as np

        ln_masses = np.log(np.concatenate(self.masses))
        number = np.repeat(np.arange(self.n_classes), [*map(len, self.masses)])
        return np.asarray(number[np.abs(np.log(mass)[..., None] - ln_masses).argmin(axis=-1)])

    def encoded(self, labels: np.ndarray) -> np.ndarray:
        """Return class numbers 0..C-1, (N,) int64, of labels in files, which must be those of classes."""
        import numpy as np

        return np.searchsorted(self.labels, labels) if self.numbers else np.asarray(labels, dtype=np.int64)

    def decoded(self, numbers: np.ndarray) -> np.ndarray:
        """Return labels as in files, (N,) of the same type, of class numbers."""
        import numpy as np

        return np.asarray(self.numbers, dtype=numbers.dtype)[numbers] if self.numbers else numbers

    def absent(self, counts: Iterable[int]) -> str:
        """Return what is to be said of classes without showers, to be put behind other words; "" if all have some."""
        none = [name for name, count in zip(self.classes, counts, strict=True) if not count]
        if not none:
            return ""
        needed = "" if self.target else f": stack --task {self.name} needs some of each of its {self.n_classes} classes"
        if self.name == "composition" and not self.has_own_groups:
            enough = len(none) < self.n_classes - 1
            needed = ": stack tells the other groups apart" if enough else ": stack needs at least two groups"
        return f"; no showers of {', '.join(none)}{needed}"

    @property
    def label_type(self) -> str:
        """NumPy type of the label file: int8 class numbers, or float32 true values of a target."""
        return "int8" if self.target is None else "float32"

    @property
    def output_array(self) -> str:
        """Name of the array of ``predictions.npz`` that is scored."""
        return self.class_output if self.target is None else self.target.name


def mean_ln_masses(masses: Sequence[Sequence[int]]) -> np.ndarray:
    """Return the mean ln A, (C,), of the nuclei of C groups, each its mass numbers."""
    import numpy as np

    counts = [*map(len, masses)]
    return np.asarray(np.add.reduceat(np.log(np.concatenate(masses)), np.cumsum([0, *counts[:-1]])) / counts)


def bins(n: int) -> tuple[str, ...]:
    """Return the class names of a target's ``n`` bins."""
    return tuple(f"bin_{k:02d}" for k in range(n))


COMPOSITION = Task(
    "composition", ("proton", "helium", "carbon", "silicon", "iron"), "labels_composition.npy", "composition",
    masses=((1,), (4,), (12,), (28,), (56,)),
)  # fmt: skip
GAMMA_CLASS, HADRON = 0, 1
"""Class numbers of :data:`GAMMA`."""
GAMMA = Task("gamma", ("gamma", "hadron"), "labels_gamma.npy", "gamma", class_output="gamma_scores")
ENERGY = Task(
    "energy",
    bins(12),
    "labels_energy.npy",
    "composition",
    TargetQuantity("lg_energy", "lg(E/eV)", "primary energy", (13.0, 21.0), close=0.1, reference="E", raw="E"),
)
TASKS: dict[str, Task] = {task.name: task for task in (COMPOSITION, GAMMA, ENERGY)}
LABEL_FILES = (*(str(task.label_file) for task in TASKS.values()), OWN_LABELS_FILE)
ANSWER_FILES = frozenset({WEIGHT_FILE, TRUTH_FILE, *LABEL_FILES})
"""Files of a dataset folder that tell classes: nothing that predicts looks at them."""


def task_named(name: str) -> Task:
    """Return the benchmark task called ``name``."""
    try:
        return TASKS[name]
    except KeyError:
        raise InputError(f"unknown task {name!r}: choose one of {', '.join(TASKS)}") from None
