"""What every registered learner promises: fit, predict, save, load bit-identical, determinism, refusal of bad input."""

from __future__ import annotations

import importlib
import sys
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from showerstack.features.catalogue import CATALOGUE, feature_set
from showerstack.models import registry
from showerstack.models.base.average import LearnerAverage, _part_of_progress
from showerstack.models.base.learner import Batch, Learner
from showerstack.models.base.spec import LearnerSpec
from showerstack.models.networks.learner import NetworkLearner
from showerstack.runtime.code import objects_by_name
from showerstack.runtime.errors import InputError
from showerstack.showers.schema import AGE, SCALAR_NAMES, TASKS

from .conftest import toy_showers
from .test_networks import count_weights

SMALLEST = {"epochs": 1, "rounds": 4, "trees": 6, "max_iterations": 4, "batch_size": 128}
TABLE = ("fit_core_x_m", "fit_core_y_m", "Ne", "Nmu", "Ze")


def smallest(path: str, settings: dict[str, Any], classes: tuple[str, ...]) -> dict[str, Any]:
    """Return settings that train in a moment: those of :data:`SMALLEST` that the class knows."""
    kind = registry.learner_class(path)
    for name, value in SMALLEST.items():
        try:
            kind(classes, {**settings, name: value})
        except InputError:
            continue
        settings = {**settings, name: value}
    return settings


def learner_of(entry: LearnerSpec) -> Learner:
    classes = TASKS[entry.tasks[0] if entry.tasks else "composition"].classes
    settings = entry.settings_for("quick")
    if "members" in settings:
        settings["members"] = [
            {**member, "settings": smallest(member["learner"], dict(member.get("settings", {})), classes)}
            for member in settings["members"]
        ]
        settings.pop("common", None)
        return registry.create(replace(entry, settings=settings, quick={}), classes)
    return registry.create(replace(entry, settings=smallest(entry.learner, settings, classes), quick={}), classes)


def events_of(entry: LearnerSpec, n: int, seed: int) -> Batch:
    showers = toy_showers(n, seed, len(learner_of(entry).classes))
    assert showers.scalars is not None
    columns = entry.features if isinstance(entry.features, tuple) else TABLE if entry.features else ()
    rng = np.random.default_rng(seed)
    values = [
        showers.scalars[:, SCALAR_NAMES.index(name)] if name in SCALAR_NAMES else rng.normal(size=n) for name in columns
    ]
    table = np.asfortranarray(np.column_stack(values), dtype=np.float32) if columns else None
    return replace(showers, table=table, columns=columns, grids=showers.grids if entry.needs_grid else None)


FIRST = set({entry.learner: name for name, entry in reversed(registry.LEARNERS.items())}.values())
"""One learner of each class: whether a fit can be repeated is the class's."""


def test_the_catalogue_says_how_many_weights_networks_have() -> None:
    in_v2 = tuple(name for name in CATALOGUE if name not in (AGE.name, "fit_minus_age"))
    for entry in registry.LEARNERS.values():
        learner = registry.create(entry, TASKS[entry.tasks[0] if entry.tasks else "composition"].classes)
        parts = learner.members if isinstance(learner, LearnerAverage) else [learner]
        columns = feature_set(entry.features, in_v2) if isinstance(entry.features, str) else entry.features or ()
        counts = [count_weights(part, columns) for part in parts if isinstance(part, NetworkLearner)]
        assert entry.weights == (sum(counts) if counts else None), entry.name


@pytest.mark.slow
@pytest.mark.parametrize("name", list(registry.LEARNERS))
def test_contract(name: str, tmp_path: Path) -> None:
    entry = registry.spec(name)
    train, valid = events_of(entry, 300, 1), events_of(entry, 100, 2)
    unlabelled = replace(events_of(entry, 50, 3), labels=None)
    learner = learner_of(entry)
    assert learner.fit(train, valid, seed=5) is learner
    log_proba = learner.predict_log_proba(unlabelled)
    assert log_proba.shape == (50, len(learner.classes))
    assert log_proba.dtype == np.float64
    assert np.isfinite(log_proba).all()
    np.testing.assert_allclose(np.exp(log_proba).sum(axis=1), 1.0, atol=1e-9)
    learner.save(tmp_path / "saved")
    loaded = registry.load(tmp_path / "saved", classes=learner.classes)
    np.testing.assert_array_equal(loaded.predict_log_proba(unlabelled), log_proba)
    assert loaded.n_parameters == learner.n_parameters
    if name in FIRST:
        again = learner_of(entry).fit(train, valid, seed=5)
        np.testing.assert_array_equal(again.predict_log_proba(unlabelled), log_proba)
    assert train.labels is not None
    with pytest.raises(InputError):
        learner_of(entry).fit(replace(train, labels=np.zeros_like(train.labels)), valid, seed=5)
    with pytest.raises(InputError):
        learner.predict_log_proba(replace(unlabelled, table=None, columns=(), grids=None, scalars=None))


def test_every_learner_says_where_it_comes_from() -> None:
    for entry in registry.LEARNERS.values():
        assert entry.meaning
        assert entry.source
        assert issubclass(registry.learner_class(entry.learner), Learner)


ONE_FILE = '''
"""Class frequencies of the training events, whatever the event."""


import numpy as np

from showerstack.models.base.learner import Learner
from showerstack.models.base.saving import read_header, write_header
from showerstack.models.base.spec import LearnerSpec


class Frequencies(Learner):
    def fit(self, train, valid, *, seed, device="cpu", progress=None):
        counts = np.bincount(train.labels, minlength=len(self.classes)) + 1.0
        self.log_share_ = np.log(counts / counts.sum())
        return self

    def predict_log_proba(self, batch):
        return np.tile(self.log_share_, (len(batch), 1))

    def save(self, folder):
        folder.mkdir(parents=True, exist_ok=True)
        content = {"classes": self.classes, "settings": self.settings, "threads": self.threads}
        write_header(folder, "Frequencies", (), {**content, "log_share": self.log_share_})

    @classmethod
    def load(cls, folder):
        header = read_header(folder, "Frequencies")
        learner = cls(tuple(header["classes"]), header["settings"], threads=header["threads"])
        learner.log_share_ = np.array(header["log_share"])
        return learner


LEARNERS = (
    LearnerSpec("frequencies", f"{__name__}:Frequencies", "class frequencies", "fits", presets=("quick",)),
)
'''


def test_a_learner_takes_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "frequencies.py").write_text(ONE_FILE)
    (tmp_path / "again.py").write_text(ONE_FILE)
    monkeypatch.syspath_prepend(tmp_path)
    one, two = (importlib.import_module(name) for name in ("frequencies", "again"))
    result = objects_by_name((*registry.MODULES, one), "LEARNERS", attrgetter("name"))
    assert set(result) == {*registry.LEARNERS, "frequencies"}
    monkeypatch.setattr(registry, "LEARNERS", result)
    events = events_of(result["frequencies"], 60, 4)
    learner = learner_of(result["frequencies"]).fit(events, events, seed=1)
    learner.save(tmp_path / "saved")
    loaded = registry.load(tmp_path / "saved")
    np.testing.assert_array_equal(loaded.predict_log_proba(events), learner.predict_log_proba(events))
    with pytest.raises(ValueError, match="exists already"):
        objects_by_name((*registry.MODULES, one, two), "LEARNERS", attrgetter("name"))
    for name in ("frequencies", "again"):
        sys.modules.pop(name)


def test_members_of_an_average_share_its_progress() -> None:
    told: list[tuple[float, float]] = []
    report = _part_of_progress(lambda done, total, *_: told.append((done, total)), 1, 4, [])
    for done, total in ((0, 0), (5, 20), (20, 20)):
        report(done, total)
    assert told == [(1.0, 4), (1.25, 4), (2.0, 4)]


def test_members_of_an_average_are_learners_of_this_package() -> None:
    for path in (
        "os:system",
        "showerstack.models.base.learner:Batch",
        "showerstack.models.nowhere:Nothing",
        "showerstack.models.base.average:LearnerAverage",
        "",
    ):
        with pytest.raises(InputError, match="cannot be a member"):
            LearnerAverage(("a", "b"), {"members": [{"learner": path}]})
