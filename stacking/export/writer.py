"""A finished run written as ONNX files, with one JSON on how to use them.

All after the learners is one graph: average of fits, pool, temperature, decision. To check the files, the same events
are predicted by them and by the run.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from showerstack.features.catalogue import CATALOGUE
from showerstack.models.base.learner import Batch, Learner
from showerstack.models.onnx.graph import LOG_PROBABILITY, OPSETS, NotPortable, Portable
from showerstack.models.onnx.learners import EXAMPLES, export_module, graphs_of, space_of
from showerstack.models.onnx.predictor import averaged, feed_of, run_graph, session
from showerstack.models.onnx.runtimes import largest_difference_in, runtimes
from showerstack.models.registry import load as load_learner
from showerstack.runtime.checksums import write_checksums
from showerstack.runtime.context import Bars, Context, silent
from showerstack.runtime.errors import InputError
from showerstack.runtime.files import atomic_folder, hash_file, write_json
from showerstack.runtime.packages import lacking
from showerstack.scoring.metrics.classes import SCORE_OF_HALF
from showerstack.showers.schema import AGE, EXPORT_FILE, GAMMA, GAMMA_CLASS, HADRON, SCALARS
from showerstack.stacking.chain import Chain
from showerstack.stacking.estimates import POOL, PosteriorMean
from showerstack.stacking.events import CONTEXT_SCALARS, Events
from showerstack.stacking.export.exported import EXPORT_FORMAT
from showerstack.stacking.layout import CHAIN_FILES, COLUMNS_FILE
from showerstack.stacking.prediction.predict import open_events
from showerstack.stacking.prediction.predictable import SavedFits
from showerstack.stacking.prediction.run import Run, load
from showerstack.stacking.stated import Configuration, Export, ExportedFit, ExportedLearner, Graph, Inputs

LOG = logging.getLogger(__name__)

TOLERANCE = 1e-5
"""Largest difference of a probability."""
CHECK_EVENTS, ALWAYS_EVENTS = 10_000, 1_000
"""Events that are compared: of a set that was given, and of the training events otherwise."""
RUN_OPTIONS = ("threads", "label", "group", "weight", "split", "id", "separator")
"""Options of the run that predictions need."""
RUN_INPUTS = ("train_source", "train_scalars", "train_quantities")
"""What of its training events they are compared with."""


def largest_difference(graphs: Sequence[Portable], space: str, learner: Learner, batch: Batch) -> float:
    """Return the largest difference of a probability between a learner and its graphs, refused above the tolerance."""
    log_proba = [run_graph(session(graph.model.SerializeToString()), graph.columns, batch) for graph in graphs]
    differences = np.exp(averaged(log_proba, space)) - np.exp(learner.predict_log_proba(batch))
    largest = float(np.abs(differences).max(initial=0.0))
    if not largest <= TOLERANCE:
        raise InputError(
            f"the ONNX form differs by {largest:.1e} in a probability, more than {TOLERANCE:.0e} is no copy"
        )
    return largest


CONTEXT = "context"
"""Input (n, K) float32: quantities of the event beside the learners' log-probabilities."""


def context_columns(chain: Chain) -> tuple[str, ...]:
    """Return the K columns of the input ``context``; none where the task needs none."""
    has_reference = chain.task.target is not None and chain.task.target.reference is not None
    return CONTEXT_SCALARS if has_reference else ()


def combination_graph(chain: Chain) -> Any:
    """Return the graph of all after the learners as ``onnx.ModelProto``.

    Inputs are, by name of the learner, the (n, fits, C) float32 log-probabilities of all its fits; outputs are
    ``log_probability`` (n, C) float32 and the outputs of :class:`showerstack.stacking.answers.TaskStacking`.
    """
    module = _Combination(chain)
    n_classes = chain.task.n_classes
    start = torch.log_softmax(torch.linspace(0, 1, EXAMPLES * chain.n_fits * n_classes).reshape(EXAMPLES, -1), dim=1)
    start = start.reshape(EXAMPLES, chain.n_fits, n_classes)
    examples = {name: start[:, : len(chain.fits(name))].contiguous() for name in chain.needed}
    columns = context_columns(chain)
    if columns:
        examples[CONTEXT] = torch.ones(EXAMPLES, len(columns))
    return export_module(module, examples, [LOG_PROBABILITY, *chain.procedure.outputs], in_one=True)


class _Combination(nn.Module):
    """See :func:`combination_graph`; numbers are float64 inside."""

    def __init__(self, chain: Chain) -> None:
        super().__init__()
        self.chain = chain
        self.names = chain.needed
        self.has_context = bool(context_columns(chain))
        if POOL in chain.rules:
            raise NotPortable(f"the {POOL} takes a learner's own estimate, which has no ONNX form")

    def forward(self, *given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return log-posteriors and the task's answers."""
        context = given[-1].double() if self.has_context else None
        averages = [torch.log_softmax(fits.double().mean(dim=1), dim=1) for fits in given[: len(self.names)]]
        log_proba = self._pooled(averages) if self.chain.shipped == "stack" else averages[0]
        scale = self.chain.scales[self.chain.shipped]
        if scale != 1.0:
            log_proba = torch.log_softmax(scale * log_proba, dim=1)
        return (log_proba.float(), *self._answers(log_proba, context))

    def _pooled(self, averages: list[torch.Tensor]) -> torch.Tensor:
        pool, logits = self.chain.pool, _tensor(self.chain.pool.bias)
        for name, average in zip(self.names, averages, strict=True):
            place = pool.learners.index(name)
            logits = logits + average * _tensor(pool.weights[place] * pool.scales[place])
        return torch.log_softmax(logits, dim=1)

    def _answers(self, log_proba: torch.Tensor, context: torch.Tensor | None) -> tuple[torch.Tensor, ...]:
        chain = self.chain
        rule = chain.rules.get(chain.shipped)
        if isinstance(rule, PosteriorMean):
            return _estimate(rule, log_proba, context)
        if chain.task == GAMMA:
            return ((log_proba[:, GAMMA_CLASS] - log_proba[:, HADRON] + SCORE_OF_HALF).float(),)
        return (torch.argmax(log_proba, dim=1),)


def _estimate(
    rule: PosteriorMean, log_proba: torch.Tensor, context: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    probability = torch.softmax(log_proba, dim=1)
    estimate = probability @ _tensor(rule.mean)
    mean_square = probability @ _tensor(rule.variance + rule.mean**2)
    error = rule.scale * torch.sqrt(torch.clamp(mean_square - estimate * estimate, min=0.0))
    if context is not None:
        estimate = estimate + context[:, 0]
    return estimate.float(), error.float()


def _tensor(values: np.ndarray) -> torch.Tensor:
    return torch.as_tensor(np.asarray(values, dtype=np.float64))


COMBINATION_FILE = "combination.onnx"
INSTRUCTIONS = (
    "Features stay in front: compute the columns with 'features' of this version of showerstack (units below).",
    "Give every file of a fit its columns in the order listed, float32, NaN where undefined, and where it wants one "
    "the grid in MeV (station rows, station columns, channels e/gamma and muon).",
    "A fit of several files: average their log_probability in the space named (log: mean, then normalise; probability: "
    "mean of exp), for one log-probability a class.",
    "Stack the fits of each learner to (n, fits, classes) in the order listed and give them to the combination: it "
    "averages, combines, calibrates and decides.",
    "Or let showerstack do all of it, with onnxruntime alone: python cli.py predict --run THIS_FOLDER --data DATA "
    "--out new.npz. The files below meta/ are for that.",
)


@dataclass(frozen=True)
class Exported:
    """An export that was written."""

    folder: Path
    written: dict[str, int]
    """Files by learner."""
    refused: dict[str, str]
    """Reasons by learner, or ``combination``."""
    largest_difference: float | None
    """Of a probability, over all fits; None if nothing was compared."""
    in_others: Mapping[str, Mapping[str, float | str]] = field(default_factory=dict)
    """By other runtime and learner: the largest difference of a log-probability, or why it does not run the file."""


def export_run(
    run: Path, out: Path, learners: Sequence[str] | None = None, check: Path | None = None, *, bars: Bars = silent
) -> Exported:
    """Write the fits of a finished run as ONNX files into a new folder.

    Parameters
    ----------
    run
        Your own finished run: its model files are opened in this process.
    out
        New folder: ``learners/<name>/fold-<k>.onnx`` (``average.onnx`` where the fits are one network),
        ``combination.onnx``, ``export.json``.
    learners
        Names; by default those that the shipped system needs.
    check
        Dataset folder or table: up to 10,000 of its events go through every fit and its file, and must agree to 1e-5,
        and 1,000 through a file of each learner in every other runtime that is installed. Without it, 1,000 training
        events go through fits and files where they and onnxruntime are there.

    Raises
    ------
    InputError
        If a package is missing, the run or a name cannot be used, no learner has an ONNX form, or a file differs from
        its fit.
    """
    opened = load(run)
    known = opened.chain.learners
    names = tuple(learners) if learners is not None else opened.chain.needed
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        raise InputError(f"{run} has no learner {', '.join(unknown) or 'to export'}: choose from {', '.join(known)}")
    events = _events_to_compare(opened, names, check, bars)
    with atomic_folder(Path(out)) as folder, bars("exporting", "fits") as progress:
        writer = _Writer(opened, folder, events, is_asked=check is not None)
        for k, name in enumerate(names):
            writer.write_learner(name)
            progress(k + 1, len(names), name)
        if not writer.learners:
            reasons = "; ".join(f"{name}: {reason}" for name, reason in writer.refused.items())
            raise InputError(f"nothing to export: {reasons}")
        combination = writer.write_combination()
        if (estimates := opened.chain.target_calibration) is not None:
            writer.refused["energy and core"] = (
                f"estimates of {estimates.learner} beside the classes have no ONNX form: predict with the run for them"
            )
        for file in (*CHAIN_FILES, *((COLUMNS_FILE,) if opened.of_table else ())):
            (folder / file).parent.mkdir(exist_ok=True)
            shutil.copyfile(opened.checksums.path(file), folder / file)
        write_json(folder / EXPORT_FILE, writer.export(combination).as_json())
        write_checksums(folder)
    written = {row.name: sum(len(fit.files) for fit in row.fits) for row in writer.learners}
    return Exported(Path(out), written, writer.refused, writer.difference, writer.in_others)


class _Writer:
    """Writes the files of one export and collects the content of its JSON."""

    def __init__(self, run: Run, folder: Path, events: Events | None, *, is_asked: bool) -> None:
        self.run, self.folder, self.events, self.is_asked = run, folder, events, is_asked
        self.learners: list[ExportedLearner] = []
        self.refused: dict[str, str] = {}
        self.difference: float | None = None
        self.in_others: dict[str, dict[str, float | str]] = {}

    def write_learner(self, name: str) -> None:
        """Write all fits of a learner, or note why not."""
        saved = self.run.fits(name)
        try:
            fits = [self._write_fit(saved, fold) for fold in range(len(saved.fits))]
        except NotPortable as error:
            self.refused[name] = str(error)
            return
        self.learners.append(ExportedLearner(name=name, fits=fits))

    def _write_fit(self, saved: SavedFits, fold: int) -> ExportedFit:
        learner = load_learner(saved.fits[fold].place, classes=self.run.task.classes)
        graphs, space, files = graphs_of(learner), space_of(learner), []
        if self.events is not None:
            rows = np.arange(min(CHECK_EVENTS if self.is_asked else ALWAYS_EVENTS, len(self.events)))
            batch = self.events.batch(rows, saved.columns, grids=saved.needs_grid)
            self.difference = max(largest_difference(graphs, space, learner, batch), self.difference or 0.0)
        for k, graph in enumerate(graphs):
            file = f"{saved.fits[fold].place.name}{'' if len(graphs) == 1 else f'.member-{k}'}.onnx"
            place = self.folder / "learners" / saved.name / file
            written = self._write(graph.model, place)
            if self.events is not None and self.is_asked and not fold + k:
                feeds = [feed_of(graph.columns, batch.take(rows[:ALWAYS_EVENTS]), grid=bool(graph.grid_shape))]
                for name, runner in runtimes():
                    found = largest_difference_in(runner, place, feeds)
                    self.in_others.setdefault(name, {})[saved.name] = found
            grid: dict[str, Any] = {"grid": list(graph.grid_shape)} if graph.grid_shape else {}
            files.append(Graph(**written, columns=list(graph.columns), **grid))
        return ExportedFit(fold=fold, average=space, files=files)

    def write_combination(self) -> dict[str, Any] | None:
        """Write the graph that combines the learners, or note why not."""
        chain = self.run.chain
        missing = [name for name in chain.needed if name not in {row.name for row in self.learners}]
        if missing:
            self.refused["combination"] = f"needs {', '.join(missing)}, which this export does not hold"
            return None
        try:
            graph = combination_graph(chain)
        except NotPortable as error:
            self.refused["combination"] = str(error)
            return None
        columns = context_columns(chain)
        return {
            **self._write(graph, self.folder / COMBINATION_FILE),
            "inputs": {name: ["n", len(chain.fits(name)), chain.task.n_classes] for name in chain.needed},
            **({CONTEXT: list(columns)} if columns else {}),
            "outputs": {LOG_PROBABILITY: "calibrated, (n, classes) float32", **chain.procedure.outputs},
        }

    def export(self, combination: dict[str, Any] | None) -> Export:
        """Return the content of ``export.json``."""
        chain, trained = self.run.chain, self.run.manifest
        files = [file for row in self.learners for fit in row.fits for file in fit.files]
        columns = {name for file in files for name in file.columns} | set((combination or {}).get(CONTEXT, ()))
        groups: dict[str, Any] = {} if trained.groups is None else {"groups": trained.groups}
        return Export(
            format=EXPORT_FORMAT,
            how=list(INSTRUCTIONS),
            task=chain.task.name,
            classes=list(chain.task.classes),
            label_type=trained.label_type,
            **groups,
            config=Configuration(**{name: getattr(trained.config, name) for name in RUN_OPTIONS}),
            data=Inputs(**{name: getattr(trained.data, name) for name in RUN_INPUTS}),
            systems=list(self.run.systems),
            shipped=chain.shipped,
            config_hash=chain.config_hash,
            stacking_version=trained.stacking_version,
            features_version=trained.features_version,
            versions=trained.versions,
            opsets={domain or "ai.onnx": version for domain, version in OPSETS.items()},
            columns=describe_columns(columns),
            learners=self.learners,
            combination=combination,
            refused=self.refused,
            largest_difference_in_probability=self.difference,
            tolerance=TOLERANCE,
        )

    def _write(self, model: Any, file: Path) -> dict[str, Any]:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(model.SerializeToString(deterministic=True))
        return {"file": file.relative_to(self.folder).as_posix(), "sha256": hash_file(file)}


def describe_columns(names: set[str]) -> dict[str, dict[str, str]]:
    """Return unit and meaning of every column of the catalogue or the protocol; others have none."""
    documented: dict[str, Any] = {**{scalar.name: scalar for scalar in (*SCALARS, AGE)}, **CATALOGUE}
    described = ((name, documented.get(name)) for name in sorted(names))
    return {name: {"unit": column.unit, "meaning": column.meaning} if column else {} for name, column in described}


def _events_to_compare(run: Run, names: Sequence[str], check: Path | None, bars: Bars) -> Events | None:
    """Return the events that go through fits and files, those of the training where none are given; None without."""
    columns = tuple(dict.fromkeys(column for name in names for column in run.fits(name).columns))
    ctx = Context(bars=bars, device="cpu")
    if check is not None:
        return open_events(run, Path(check), columns, ctx)
    place = Path(str(run.manifest.config.table if run.of_table else run.manifest.data.train))
    if lacking("onnx") or not place.exists():
        LOG.warning("the files are not compared with the run: %s", "onnxruntime is not installed" if place.exists() else
                    f"{place}, which it was trained on, is not there (give --check)")  # fmt: skip
        return None
    return open_events(run, place, columns, ctx, no_table=True)
