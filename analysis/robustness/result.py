"""What a study of robustness is asked for and what it found, as a table and as files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from analysis.robustness.places import Place
from scoring.uncertainty.paired import Paired
from showers.schema import COMPOSITION
from showers.storage.files import atomic_path, write_json
from stacking.run.provenance import git_revision, versions

MATRIX_CSV, STUDY_FILE = "robustness.csv", "robustness.json"


@dataclass(frozen=True)
class RobustnessOptions:
    """What the user asks for."""

    places: tuple[Place, ...]
    out: Path
    train: int = 12_000
    test: int = 10_000
    learner: str = "lightgbm"
    preset: str = "quick"
    left_out: int = 5
    """Features to be left out."""
    jitter: float = 0.03
    """Width of the jitter of sizes, in lg."""
    seed: int = 1
    workers: int | None = None
    threads: int = 1


@dataclass(frozen=True)
class Cell:
    """One training tested in one place."""

    training: str
    trained_on: str
    tested_on: str
    events: int
    accuracy: float
    accuracy_interval: tuple[float, float]
    log_loss: Paired
    """Mean over events, as a difference to nothing."""
    against_home: Paired
    """Log-loss less that of the home training alone, same events."""
    accuracy_against_home: Paired
    bias: np.ndarray
    """(C,) found minus true shares, by the likelihood checked with the training places' own test showers."""
    bias_error: np.ndarray


@dataclass(frozen=True)
class Robustness:
    """All that the study found."""

    options: RobustnessOptions
    cells: tuple[Cell, ...]
    auc: dict[str, tuple[float, float, float]]
    """Area under the curve of a classifier between home and each other place, with its 95 % interval."""
    differing: tuple[str, ...]
    """The features that are left out."""

    def table(self) -> pl.DataFrame:
        """Return one row per training and place."""
        rows = []
        for one in self.cells:
            rows.append(
                {
                    "training": one.training, "trained_on": one.trained_on, "tested_on": one.tested_on,
                    "events": one.events, "accuracy": one.accuracy, "accuracy_low_95": one.accuracy_interval[0],
                    "accuracy_high_95": one.accuracy_interval[1], "log_loss_nats": one.log_loss.difference,
                    "log_loss_error": one.log_loss.standard_error,
                    "log_loss_minus_home": one.against_home.difference,
                    "log_loss_minus_home_low_95": one.against_home.interval.low,
                    "log_loss_minus_home_high_95": one.against_home.interval.high,
                    "accuracy_minus_home": one.accuracy_against_home.difference,
                    "accuracy_minus_home_low_95": one.accuracy_against_home.interval.low,
                    "accuracy_minus_home_high_95": one.accuracy_against_home.interval.high,
                }
                | {f"share_bias_{name}": one.bias[k] for k, name in enumerate(COMPOSITION.classes)}
                | {f"share_error_{name}": one.bias_error[k] for k, name in enumerate(COMPOSITION.classes)}
            )  # fmt: skip
        return pl.DataFrame(rows)

    def write(self) -> None:
        """Write the table and where it comes from."""
        out, options = self.options.out, self.options
        with atomic_path(out / MATRIX_CSV) as temporary:
            self.table().write_csv(temporary)
        write_json(
            out / STUDY_FILE,
            {
                "places": [place.name for place in options.places],
                "training_showers": options.train,
                "test_showers": options.test,
                "learner": options.learner,
                "preset": options.preset,
                "jitter_lg": options.jitter,
                "seed": options.seed,
                "left_out": list(self.differing),
                "classifier_auc_to_home": {name: list(value) for name, value in self.auc.items()},
                "cells": self.table().to_dicts(),
                "versions": versions(),
                "git_revision": git_revision(),
            },
        )
