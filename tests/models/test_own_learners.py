"""Learners that are given as objects: a class of one's own is trained like those with a name."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import showerstack
from showerstack.estimators import StackClassifier
from showerstack.models import registry
from showerstack.models.base.spec import LearnerSpec
from showerstack.models.registry import register, spec
from showerstack.runtime.errors import InputError, Remark

MODULE = '''
import numpy as np

from showerstack.models.base.learner import Learner, check_training, select_table
from showerstack.models.base.spec import LearnerSpec


class Frequencies(Learner):
    """Class frequencies of the training events."""

    spec = LearnerSpec("frequencies", f"{__name__}:Frequencies", "class frequencies", None, for_tables=True)

    def fit(self, train, valid, *, seed, device="cpu", progress=None):
        check_training(train, valid, self.classes, table=True, grid=False)
        self.columns_, self.share_ = train.columns, np.bincount(train.labels, minlength=len(self.classes)) / len(train)
        return self

    def predict_log_proba(self, batch):
        select_table(batch, self.columns_)
        return np.tile(np.log(self.share_), (len(batch), 1))

    def save(self, folder):
        folder.mkdir(parents=True, exist_ok=True)
        self.write_saved(folder, (), {"columns": self.columns_, "share": self.share_})

    @classmethod
    def load(cls, folder):
        learner, header = cls.from_saved(folder)
        learner.columns_, learner.share_ = tuple(header["columns"]), np.asarray(header["share"])
        return learner


class Nothing:
    pass
'''
OPTIONS: dict[str, Any] = {"preset": "quick", "folds": 2, "repeats": 1, "workers": 1, "device": "cpu"}


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    (tmp_path / "my_learners.py").write_text(MODULE, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(registry, "LEARNERS", dict(registry.LEARNERS))
    import my_learners  # type: ignore[import-not-found]

    yield my_learners
    del sys.modules["my_learners"]


def test_a_class_is_trained_and_opened_again(mine: Any, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(300, 2)), np.repeat(["a", "b", "b"], 100)
    with pytest.warns(Remark, match="without an outer holdout"):
        model = StackClassifier(learners=[mine.Frequencies], run=tmp_path / "run", **OPTIONS).fit(x, y)
    np.testing.assert_allclose(model.predict_proba(x[:2]), [[1 / 3, 2 / 3]] * 2, atol=0.02)
    again = showerstack.fitted(tmp_path / "run").predict(x[:2])
    np.testing.assert_array_equal(again.probabilities, model.predict_proba(x[:2]))
    del registry.LEARNERS["frequencies"]
    with pytest.raises(InputError, match=r"'Frequencies'; known are .*, and one of your own once .*register has it"):
        showerstack.fitted(tmp_path / "run").predict(x[:2])
    assert register(mine.Frequencies) == "frequencies"
    np.testing.assert_array_equal(
        showerstack.fitted(tmp_path / "run").predict(x[:2]).probabilities, again.probabilities
    )


def test_objects_and_names_are_told_apart(mine: Any) -> None:
    assert register(mine.Frequencies.spec) == "frequencies" == register("frequencies")
    assert spec("frequencies") is mine.Frequencies.spec
    with pytest.raises(InputError, match="class Nothing has no spec"):
        register(mine.Nothing)
    for place, why in (
        ("my_learners:Nothing", "must be a Learner in a module of its own"),
        ("my_learners:Gone", "no class is at my_learners:Gone"),
        ("gone_module:Gone", "no class is at gone_module:Gone"),
        ("__main__:Gone", "no class is at __main__:Gone"),
    ):
        with pytest.raises(InputError, match=why):
            register(LearnerSpec("other", place, "", None))
    with pytest.raises(InputError, match="learner mlp is another one here"):
        register(LearnerSpec("mlp", "my_learners:Frequencies", "", None))
