"""The saved bundle: a finished run folder that predicts new, unlabelled events.

>>> import stacking                                         # doctest: +SKIP
>>> predictions = stacking.load("runs/composition").predict("data/new_events")     # doctest: +SKIP
>>> predictions.labels                                      # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import joblib
import numpy as np
from threadpoolctl import threadpool_limits

from features.build import build_table
from features.device import resolve_device
from features.source import feature_code_version
from showers.datasets.dataset import Dataset
from showers.execution.progress import Bars, silent
from showers.schema import TASKS, InputError, Task
from showers.storage.checksums import Seal
from stacking.decide.gamma_scores import REAL_RATIOS, TABLE_EFFICIENCIES, threshold_table
from stacking.events import Events, ShowerEvents
from stacking.predict.chain import Chain, Predictions
from stacking.predict.fits import SavedFits, predict_fits
from stacking.predict.saving import load_chain
from stacking.procedures.gamma import SCORES_FILE
from stacking.run.provenance import stacking_code_version
from stacking.run.sealing import learner_folder, open_sealed, required_names


@dataclass(frozen=True)
class Bundle:
    """A finished run, ready to predict; see :func:`load`."""

    run: Path
    chain: Chain
    manifest: Mapping[str, Any]
    sealed: Seal
    """Checksums by which every file is compared before it is used."""
    trusted: bool = False
    """Whether the learners' model files are opened in this process: faster, but a damaged or hostile one can end it."""

    @property
    def task(self) -> Task:
        """What is predicted."""
        return self.chain.task

    def predict(
        self,
        dataset: str | Path,
        *,
        device: str = "auto",
        workers: int | None = None,
        everything: bool = False,
        anyway: bool = False,
        features: str | Path | None = None,
        elsewhere: str | Path | None = None,
        bars: Bars = silent,
    ) -> Predictions:
        """Predict the events of a dataset folder; labels are neither needed nor looked at.

        Parameters
        ----------
        dataset
            Dataset folder; its feature table is built if missing.
        device
            Where features are computed.
        workers
            Processes; all cores if None.
        everything
            Also return the learners that the shipped prediction does not need.
        features
            Folder of the feature table; by default beside the dataset.
        elsewhere
            Folder of the feature table where nothing can be written beside the dataset.
        anyway
            Predict even if feature code or its libraries have changed since the training; a remark then says so.

        Raises
        ------
        InputError
            If the folder cannot be used, the run was trained on a table, or on features of other code.
        """
        if self.task.name not in TASKS:
            raise InputError(f"{self.run} was trained on a table: give it a table, not a dataset folder")
        if not len(Dataset.open(dataset, labels=False)):
            raise InputError(f"{dataset} holds no events")
        remarks = self._code_remarks(anyway=anyway)
        device = resolve_device(device)
        table = build_table(Path(dataset), features, elsewhere=elsewhere, device=device, workers=workers, bars=bars)
        predictions = self.predict_events(
            ShowerEvents(Path(dataset), table.folder, self.task), workers=workers, everything=everything, bars=bars
        )
        return replace(predictions, remarks=(*remarks, *predictions.remarks))

    def predict_events(
        self, events: Events, *, workers: int | None = None, everything: bool = False, bars: Bars = silent
    ) -> Predictions:
        """Predict opened events, in pieces of bounded memory; see :meth:`predict` for the options."""
        threads = int(self.manifest["config"]["threads"])
        with threadpool_limits(threads), bars("predicting", "predictions of fits") as progress:
            fits = predict_fits(
                events,
                [self._fits(name) for name in (self.chain.learners if everything else self.chain.needed)],
                trusted=self.trusted,
                threads=threads,
                workers=max(1, (workers or joblib.cpu_count()) // threads),
                progress=progress,
            )
            predictions = self.chain.finish(fits, events.context(), events.events_fingerprint())
        if self.manifest.get("code_version") == stacking_code_version():
            return predictions
        remark = (
            f"{self.run} was trained by another version of the learners' code: its saved models are used as they are"
        )
        return replace(predictions, remarks=(remark,))

    def thresholds(
        self,
        efficiencies: tuple[float, ...] = TABLE_EFFICIENCIES,
        ratios: tuple[float, ...] = REAL_RATIOS,
    ) -> list[dict[str, Any]]:
        """Return thresholds on gamma scores for your own efficiencies and gamma-to-hadron ratios.

        See :func:`stacking.decide.gamma_scores.threshold_table`; made from out-of-fold scores of the training events.

        Raises
        ------
        InputError
            If this is no gamma run, or an efficiency is outside (0, 1].
        """
        if f"meta/{SCORES_FILE}" not in self.sealed.files:
            raise InputError(f"{self.run} has no thresholds: it was trained for {self.task.name}")
        with np.load(self.sealed.path(f"meta/{SCORES_FILE}"), allow_pickle=False) as stored:
            return threshold_table(stored["labels"], stored["scores"], efficiencies, ratios)

    def _code_remarks(self, *, anyway: bool) -> tuple[str, ...]:
        """Refuse a run whose learners were trained on features of other code, or say so."""
        made_by, now = self.manifest.get("feature_code_version"), feature_code_version()
        if made_by == now:
            return ()
        changed = f"{self.run} was trained on features of other code or libraries ({str(made_by)[:12]}, now {now[:12]})"
        if anyway:
            return (f"{changed}: the learners may be given numbers that they do not know",)
        raise InputError(
            f"{changed}: train again (python cli.py stack --task {self.task.name} --data DATA --run NEW_RUN), "
            "or predict with --anyway"
        )

    def _fits(self, name: str) -> SavedFits:
        record = next(row for row in self.manifest["learners"] if row["name"] == name)
        folders = tuple(learner_folder(self.sealed, name, fold) for fold in range(self.chain.n_fits))
        return SavedFits(name, folders, tuple(record["features"]), bool(record["needs_grid"]))

    @classmethod
    def load(cls, run: str | Path, *, trusted: bool = False) -> Self:
        """Open a finished run folder; nothing in it is executed.

        Parameters
        ----------
        run
            The run folder.
        trusted
            For one's own runs: open the learners' model files in this process instead of a limited one of their own
            (:mod:`models.isolated`), because the libraries' parsers of such files are not memory-safe.

        Raises
        ------
        InputError
            If it is not a run folder, not finished, or a file is not the one that was written.
        """
        sealed, manifest = open_sealed(Path(run))
        sealed = Seal.open(sealed.folder, required_names(manifest))
        return cls(Path(run), load_chain(sealed, manifest), manifest, sealed, trusted)


def load(run: str | Path, *, trusted: bool = False) -> Bundle:
    """Open a finished run folder for predictions; see :meth:`Bundle.load`."""
    return Bundle.load(run, trusted=trusted)
