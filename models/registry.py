"""Every base learner under its name: which class, inputs and settings, where it comes from, where it trains.

``LEARNERS`` holds our own learners, the published systems (``published.*``) and those for tables
(:mod:`showerstack.models.catalogue`), then those of the entry points ``showerstack.learners``. :func:`create` makes a
learner, :func:`load` opens a saved one, :func:`listing` shows them all. Every library is asked for its devices itself,
since one may have a GPU build beside one without.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from showerstack.features.device import gpu_answers
from showerstack.models.base.average import member_class
from showerstack.models.base.learner import Learner, Predictor
from showerstack.models.base.saving import HEADER_FILE, read_header
from showerstack.models.base.spec import LearnerSpec
from showerstack.models.catalogue import ours, published, tables
from showerstack.runtime.code import installed_modules, objects_by_name
from showerstack.runtime.errors import InputError, most_similar, need
from showerstack.runtime.stated import understood

if TYPE_CHECKING:
    from rich.table import Table


def spec(name: str) -> LearnerSpec:
    """Return the learner called ``name``."""
    if name not in LEARNERS:
        near = most_similar(name, LEARNERS)
        if near:
            raise InputError(f"unknown learner {name!r}: did you mean {near}? (python cli.py learners lists them)")
        raise InputError(f"unknown learner {name!r}: choose from {', '.join(LEARNERS)}")
    return LEARNERS[name]


def register(learner: Any) -> Any:
    """Return the name of a learner that is given as an object, which is known in this program from now on.

    Objects are entries (:class:`showerstack.models.base.spec.LearnerSpec`), and classes that have one as their
    ``spec``; names and all else are returned as they are. What a run names is not imported: a program that opens the
    run has to know the learner too.
    """
    entry = getattr(learner, "spec", None) if isinstance(learner, type) else learner
    if not isinstance(entry, LearnerSpec):
        if isinstance(learner, type):
            raise InputError(f"class {learner.__name__} has no spec: give it one (LearnerSpec), or give that alone")
        return learner
    if LEARNERS.get(entry.name, entry) != entry:
        raise InputError(f"learner {entry.name} is another one here: choose another name")
    module, _, name = entry.learner.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise InputError(f"learner {entry.name}: no class is at {entry.learner} ({error})") from None
    if module == "__main__" or not (isinstance(found, type) and issubclass(found, Learner)):
        raise InputError(
            f"learner {entry.name}: {entry.learner} must be a Learner in a module of its own, which worker processes "
            "import"
        )
    return LEARNERS.setdefault(entry.name, entry).name


def learner_class(path: str) -> type[Learner]:
    """Return the class at ``module:Class``, which must be one of the registry's."""
    module, _, name = path.partition(":")
    result: type[Learner] = getattr(importlib.import_module(module), name)
    return result


def create(
    spec: LearnerSpec,
    classes: tuple[str, ...],
    *,
    threads: int = 1,
    overrides: Mapping[str, Any] | None = None,
    preset: str = "good",
    n_rows: int | None = None,
) -> Learner:
    """Return an untrained learner for class names in label order.

    It has the settings registered for ``preset`` and ``n_rows`` training rows, those in ``overrides`` replaced.
    """
    settings = {**spec.settings_for(preset, n_rows), **(overrides or {})}
    return learner_class(spec.learner)(classes, settings, threads=threads)


def most_events(learner: Learner) -> int | None:
    """Return how many training events a learner looks at most (its setting ``max_events``); None without a cap."""
    most = getattr(getattr(learner, "inner", learner), "chosen", {}).get("max_events")
    return None if most is None else int(most)


def load(folder: Path, *, classes: tuple[str, ...] | None = None) -> Learner:
    """Open a saved learner of any registered class, for these class names in this order; None for any."""
    header = read_header(Path(folder))
    paths = _paths()
    name = header["learner"]
    if name not in paths:
        known = ", ".join(sorted(paths))
        raise InputError(
            f"{Path(folder) / HEADER_FILE} names learner {name!r}; known are {known}, and one of your own once "
            "showerstack.models.registry.register has it"
        )
    trained_classes = tuple(header["classes"])
    if classes is not None and trained_classes != tuple(classes):
        raise InputError(
            f"{folder} was trained for classes {', '.join(trained_classes)}, expected {', '.join(classes)}"
        )
    with understood(Path(folder) / HEADER_FILE, f"what a saved {name} holds"):
        return learner_class(paths[name]).load(Path(folder))


def open_predictor(folder: Path) -> Predictor:
    """Open a saved learner for predictions alone: with :data:`PREDICTORS`, without its library, where that can be.

    Raises
    ------
    InputError
        As :func:`load`, and if its library is needed and not installed.
    """
    header = read_header(Path(folder))
    if predicts_alone(header):
        module, _, name = PREDICTORS[header["learner"]].partition(":")
        opened_by = getattr(importlib.import_module(module), name)
        with understood(Path(folder) / HEADER_FILE, f"what a saved {header['learner']} holds"):
            predictor: Predictor | None = opened_by.open(Path(folder))
        if predictor is not None:
            return predictor
    need("train", what=f"predicting with {folder}")
    return load(folder)


def predicts_alone(header: Mapping[str, Any]) -> bool:
    """Return whether a saved learner predicts without its library, from its header."""
    on_gpu = header.get("device") == "cuda" and predicts_on_gpu(header) and gpu_answers()
    return header.get("learner") in PREDICTORS and not on_gpu


PREDICTORS = {
    "PretrainedLearner": "showerstack.models.networks.predictor:TablePredictor",
    "TabularMLP": "showerstack.models.networks.predictor:TablePredictor",
    "LightGBM": "showerstack.models.tables.lightgbm_trees:LightGBMPredictor",
}
"""By class of learner, what predicts as it does, to the bit, and needs no library but the lean core's. Its ``open``
returns None for a learner that it cannot open."""


def _paths() -> dict[str, str]:
    """Return where the classes of the registered learners are, by their names."""
    return {path.partition(":")[2]: path for path in (entry.learner for entry in LEARNERS.values())}


def predicts_on_gpu(header: Mapping[str, Any]) -> bool:
    """Return whether a saved learner was trained on a GPU and predicts there, from its header."""
    path = _paths().get(str(header.get("learner")))
    return header.get("device") == "cuda" and (path is None or learner_class(path).predicts_on_gpu)


def rows() -> list[dict[str, str]]:
    """Return name, kind, tasks, inputs, weights (of networks), meaning and source of every learner."""
    return [
        {
            "name": entry.name,
            "kind": entry.kind,
            "tasks": ", ".join(entry.tasks) or "any",
            "inputs": entry.inputs,
            "weights": "" if entry.weights is None else f"{entry.weights:,}",
            "meaning": entry.meaning,
            "source": entry.source,
        }
        for entry in LEARNERS.values()
    ]


def listing() -> Table:
    """Return all learners as a table to print."""
    from rich import box

    from showerstack.runtime.whole_table import WholeTable

    table = WholeTable(title="Base learners", title_justify="left", box=box.SIMPLE_HEAD)
    for name in ("name", "inputs", "weights", "what it is", "source"):
        number = name == "weights"
        table.add_column(name, justify="right" if number else "left", no_wrap=number or name == "name")
    for row in rows():
        what = row["meaning"] if row["tasks"] == "any" else f"{row['meaning']} ({row['tasks']})"
        table.add_row(row["name"], row["inputs"], row["weights"], what, row["source"])
    return table


MODULES = (ours, published, tables, *installed_modules("showerstack.learners").values())
LEARNERS: dict[str, LearnerSpec] = objects_by_name(MODULES, "LEARNERS", attrgetter("name"))
"""All learners by name."""


def device_for(learner: type[Learner], requested: str, name: str = "") -> str:
    """Return ``"cpu"`` or ``"cuda"`` for one learner.

    Parameters
    ----------
    requested
        ``"auto"``: the GPU where one answers and the learner's library can use it. ``"cuda"``: the same, but a learner
        with :attr:`~showerstack.models.base.learner.Learner.gpu_expected` is refused where it cannot. ``"cpu"``.
    name
        What it is called in the error.
    """
    if _only_cpu(requested):
        return "cpu"
    if not gpu_answers():
        raise InputError("device 'cuda' was asked for, but no NVIDIA driver and GPU answer; or use --device cpu")
    obstacle = learner.gpu_obstacle()
    if obstacle is None:
        return "cuda"
    if requested == "cuda" and learner.gpu_expected:
        raise InputError(
            f"device 'cuda' was asked for, but {name or learner.__name__}: {obstacle}; or use --device auto"
        )
    return "cpu"


def _only_cpu(requested: str) -> bool:
    return requested == "cpu" or (requested == "auto" and not gpu_answers())


def devices_for(specs: Iterable[LearnerSpec], requested: str) -> dict[str, str]:
    """Return the device of each learner by name; see :func:`device_for`. An average's is that of all its members."""
    return {spec.name: _device_of(spec, requested) for spec in specs}


def _device_of(spec: LearnerSpec, requested: str) -> str:
    if _only_cpu(requested):  # no library need be imported to know
        return "cpu"
    members = spec.settings.get("members", ())
    classes = [member_class(str(one["learner"])) for one in members] or [learner_class(spec.learner)]
    devices = {device_for(each, requested, spec.name) for each in classes}
    return "cuda" if devices == {"cuda"} else "cpu"


def device_remarks(devices: Mapping[str, str]) -> tuple[str, ...]:
    """Return which learners stay on the CPU where others train on the GPU, in a line."""
    names = [name for name, device in devices.items() if device == "cpu"]
    return (f"train on the CPU, not on the GPU: {', '.join(names)}",) if names and "cuda" in devices.values() else ()
