"""Measured and simulated events as a run sees them, and the rules about what may be used for what."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import polars as pl

from showerstack.analysis.blinding import Blinding
from showerstack.analysis.cuts import AGE, CORE
from showerstack.runtime.context import Context
from showerstack.runtime.errors import InputError
from showerstack.runtime.files import write_npz
from showerstack.runtime.versions import FEATURES_VERSION, STACKING_VERSION
from showerstack.showers.archives.measured import measured_folders
from showerstack.showers.dataset import Dataset
from showerstack.showers.identity import refuse_shared, same_blocks, shared_showers
from showerstack.showers.kascade import CORE_RADIUS_M
from showerstack.showers.protocols import CutSet
from showerstack.showers.schema import (
    AGE_FILE,
    CORE_X_FILE,
    CORE_Y_FILE,
    LABEL_FILES,
    SCALAR_NAMES,
    TRUTH_FILE,
)
from showerstack.showers.source import is_simulated
from showerstack.stacking.chain import Predictions
from showerstack.stacking.prediction.predict import predict
from showerstack.stacking.prediction.run import Run, load


def looked_at(data: Sequence[Path], blinding: Blinding) -> list[Path]:
    """Return the dataset folders that are meant and may be looked at: each itself, or every run in a folder of runs."""
    return blinding.open_folders([folder for path in data for folder in measured_folders(path)])


def open_run(run: Path, task: str, command: str) -> Run:
    """Open a finished run of one task."""
    opened = load(run)
    if opened.task.name != task:
        raise InputError(f"{run} was trained for {opened.task.name}: {command} needs a run trained for {task}")
    return opened


def label_remarks(dataset: Dataset) -> list[str]:
    """Return a remark if a set to be measured holds labels; they are not read."""
    # The list of checksums may name a file that was taken away: what is there counts.
    label_files = [name for name in LABEL_FILES if (dataset.path / name).exists()]
    if not label_files:
        return []
    why = (
        "its showers are simulated"
        if is_simulated(dataset.source)
        else "a measured set has none: is it the right folder?"
    )
    return [f"{dataset.path} holds {', '.join(label_files)}, which is not read ({why})"]


def refuse_training_set(run: Run, dataset: Dataset, what: str) -> None:
    """Refuse showers that the run was trained on: its posteriors of them are better than of any others.

    They are known whatever the set is called, however it was cut, and where it is a part or holds others as well.
    """
    trained_on = run.manifest.data
    fingerprint = trained_on.train_fingerprint or ""
    if fingerprint.startswith(dataset.fingerprint()):
        raise InputError(f"{dataset.path} is what {run.folder} was trained on: give another set as {what}")
    folder = Path(str(trained_on.train))
    train = Dataset.open(folder, labels=False) if folder.is_dir() else None
    if train is not None and fingerprint.startswith(train.fingerprint()):
        shared = shared_showers(train, dataset)
    else:
        shared = same_blocks(trained_on.train_source or {}, dataset.source)
    if shared:
        raise InputError(
            f"{dataset.path} holds showers that {run.folder} was trained on ({shared}): give another set as {what}"
        )


def refuse_shared_folders(data: Sequence[Path], simulation: Sequence[Path] = ()) -> None:
    """Refuse folders of which two share showers; data given twice as they are is told where they are read."""
    measured = {one.fingerprint(): one for one in (Dataset.open(folder, labels=False) for folder in data)}
    simulated = [Dataset.open(folder, labels=False) for folder in simulation]
    others = [one for one in simulated if one.fingerprint() not in measured]
    refuse_shared([*(("--data", one) for one in measured.values()), *(("--simulation", one) for one in others)])


def predict_folder(run: Run, folder: Path, ctx: Context = Context(), keep: Path | None = None) -> Predictions:
    """Predict a dataset folder with an opened run.

    Parameters
    ----------
    keep
        Folder where predictions are kept for the next attempt, by run, events and versions; None: nowhere.
    """
    stream = predict(run, folder, ctx)  # says at once what there is to say; nothing is computed yet
    if keep is None:
        return stream.concatenated()
    events = Dataset.open(folder, labels=False).fingerprint()
    file = keep / f"{run.chain.config_hash[:16]}-{events[:16]}-{FEATURES_VERSION}.{STACKING_VERSION}.npz"
    if file.exists():
        with np.load(file, allow_pickle=False) as stored:
            arrays = {"predictions": stored["predictions"]}
            return Predictions(stored["log_proba"], arrays, run.chain.config_hash, events, {}, stream.remarks)
    predictions = stream.concatenated()
    keep.mkdir(parents=True, exist_ok=True)
    write_npz(file, log_proba=predictions.log_proba, predictions=predictions.labels)
    return predictions


@dataclass
class MeasuredFolders:
    """Folders of measured events, opened and predicted one after the other; what was found is noted."""

    run: Run
    folders: list[Path]
    ctx: Context = Context()
    keep: Path | None = None
    """Where predictions are kept for the next attempt."""
    fingerprints: list[str] = field(default_factory=list)
    """Fingerprints of the folders so far."""
    remarks: list[str] = field(default_factory=list)
    flows: list[dict[str, int]] = field(default_factory=list)
    """How many events of each folder pass the cuts, one cut after the other."""

    def passing(self, dataset: Dataset, cuts: CutSet) -> np.ndarray:
        """Return which events of a folder pass, (N,) bool, and note how many pass each cut."""
        columns = scalars(dataset)
        self.flows.append({"all": len(dataset)} | cuts.flow(columns))
        self.remarks += [f"{dataset.path} has no {words}: it is not cut" for words in cuts.not_applied(columns)]
        if not dataset.array.is_of_kascade:
            self.remarks.append(
                f"{dataset.path}: the cuts and the disc of {CORE_RADIUS_M:g} m are KASCADE's, not those of "
                f"{dataset.array.name}: shares are of the showers that pass, and absolute fluxes are not known"
            )
        return cuts.mask(columns)

    def __iter__(self) -> Iterator[tuple[Dataset, Predictions]]:
        """Yield each folder with its predictions."""
        for folder in self.folders:
            dataset = Dataset.open(folder, labels=False)
            refuse_training_set(self.run, dataset, "--data")
            self.remarks += label_remarks(dataset)
            if dataset.fingerprint() in self.fingerprints:
                raise InputError(f"{folder} holds the same events as another folder of --data")
            self.fingerprints.append(dataset.fingerprint())
            predictions = predict_folder(self.run, folder, self.ctx, self.keep)
            self.remarks += predictions.remarks
            yield dataset, predictions


def scalars(dataset: Dataset) -> dict[str, np.ndarray]:
    """Return the reconstructed scalars by name, (N,) float32, compared as the benchmark does.

    Age and core_m, the core's distance from the centre, stand beside them where the set has them: in files of their
    own, or as reconstructed quantities of ``truth.parquet``. NaN for events that cannot be used: they pass no cut.
    """
    values = np.asarray(dataset.scalars, dtype=np.float32)
    columns = {name: values[:, k] for k, name in enumerate(SCALAR_NAMES)}
    age, core = _age(dataset), _core(dataset)
    columns |= ({} if age is None else {AGE: age}) | ({} if core is None else {CORE: np.hypot(*core)})
    if dataset.usable.all():
        return columns
    return {name: np.where(dataset.usable, column, np.float32(np.nan)) for name, column in columns.items()}


def _age(dataset: Dataset) -> np.ndarray | None:
    if dataset.age is not None:
        return np.asarray(dataset.age, dtype=np.float32)
    if dataset.files.has(AGE_FILE):
        return np.asarray(dataset.files.array(AGE_FILE, (), np.float32, len(dataset)))
    return _reconstructed(dataset, "reconstructed_age")


def _core(dataset: Dataset) -> tuple[np.ndarray, np.ndarray] | None:
    if dataset.files.has(CORE_X_FILE) and dataset.files.has(CORE_Y_FILE):
        x, y = (dataset.files.array(name, (), np.float32, len(dataset)) for name in (CORE_X_FILE, CORE_Y_FILE))
        return np.asarray(x), np.asarray(y)
    x_m, y_m = (_reconstructed(dataset, f"reconstructed_core_{axis}_m") for axis in "xy")
    return None if x_m is None or y_m is None else (x_m, y_m)


def _reconstructed(dataset: Dataset, column: str) -> np.ndarray | None:
    """Return a reconstructed quantity that a simulated set keeps beside its truth, None where it has none."""
    if not dataset.files.has(TRUTH_FILE):
        return None
    file = dataset.files.path(TRUTH_FILE)
    if column not in pl.scan_parquet(file, glob=False).collect_schema():
        return None
    values = pl.read_parquet(file, columns=[column], glob=False)[column].to_numpy().astype(np.float32)
    return values if len(values) == len(dataset) else None


@dataclass(frozen=True)
class HoldoutEvents:
    """A run's own training events with predictions by fits that did not see them."""

    dataset: Dataset
    rows: np.ndarray
    log_proba: np.ndarray
    """(n, C) of the rows."""
    shares: np.ndarray
    """(C,) shares of the training events under the cuts that are here."""
    remarks: tuple[str, ...]


def holdout_events(run: Run, passes: Callable[[dict[str, np.ndarray]], np.ndarray], least: int) -> HoldoutEvents:
    """Return the events of a run's outer holdout, or all out-of-fold ones where the holdout is small.

    ``passes`` says of scalars which events pass the cuts; with fewer than ``least`` of a class under them, the holdout
    is small.
    """
    folder = Path(str(run.manifest.data.train))
    if not folder.exists():
        raise InputError(f"{folder}, which {run.folder} was trained on, is not there: give --simulation")
    dataset = Dataset.open(folder, run.task)
    dataset.refuse_weighted("this analysis")
    log_proba, folds = run.oof(run.chain.shipped)
    if len(folds) != len(dataset):
        raise InputError(f"{folder} has {len(dataset)} events, {run.folder} was trained on {len(folds)}")
    known = np.isfinite(log_proba).all(axis=1)
    used = known & (folds < 0)
    assert dataset.labels is not None
    remarks: list[str] = []
    passing, classes = passes(scalars(dataset)), range(run.task.n_classes)
    if np.bincount(dataset.labels[used & passing], minlength=len(classes)).min() < least:
        used = known
        remarks.append(
            f"the holdout of {run.folder} has fewer than {least} events of a class under the cuts: out-of-fold "
            "predictions of single fits replace those of their average; give --simulation, a set not trained on"
        )
    rows = np.flatnonzero(used)
    shares = np.array([used[passing & (dataset.labels == k)].mean() for k in classes], dtype=np.float64)
    return HoldoutEvents(dataset, rows, log_proba[rows], shares, tuple(remarks))


def truth_of(dataset: Dataset, columns: tuple[str, ...]) -> pl.DataFrame | None:
    """Return columns of ``truth.parquet``, None where there is no such file."""
    if not dataset.files.has(TRUTH_FILE):
        return None
    file = dataset.files.path(TRUTH_FILE)
    schema = pl.scan_parquet(file, glob=False).collect_schema()
    missing = [name for name in columns if name not in schema]
    if missing:
        raise InputError(f"{file} lacks column {', '.join(missing)}")
    frame = pl.read_parquet(file, columns=list(columns), glob=False)
    if frame.height != len(dataset):
        raise InputError(f"{file} has {frame.height} rows, the set {len(dataset)} events")
    return frame


MODELS_OF_MODES = ("qgs", "epos", "sib")
"""How the raw archives' names of the hadronic models begin, in the order of their numbers; EPOS-LHC also as LHC."""


def model_numbers(truth: pl.DataFrame) -> np.ndarray:
    """Return (N,) int64 numbers of the hadronic models in the column ``model``, which raw archives give by name."""
    model = truth["model"]
    if model.dtype.is_numeric():
        return model.to_numpy().astype(np.int64)
    names = model.unique().to_list()
    numbers = {}
    for name in names:
        short = str(name).lower().replace("lhc", "epos", 1)
        known = [k for k, prefix in enumerate(MODELS_OF_MODES) if short.startswith(prefix)]
        if not known:
            raise InputError(f"{TRUTH_FILE}: column model: unknown hadronic model {name!r}: expected names such as "
                             "qgs_spectra, epos_spectra, LHC_gm_pr or sibyll-23c_gm_pr")  # fmt: skip
        numbers[name] = known[0]
    return model.replace_strict(numbers, return_dtype=pl.Int64).to_numpy()
