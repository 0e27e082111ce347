"""A dataset that is exchanged while a run is trained ends it, and nothing is kept that may be a mixture."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

import showerstack
from showerstack.runtime.errors import Changed, InputError
from showerstack.runtime.files import folder_state
from showerstack.showers.schema import COMPOSITION
from showerstack.stacking.events import ShowerEvents, dataset_state

OPTIONS = {"task": "composition", "learners": ("quadratic_logit",), "folds": 3, "device": "cpu", "workers": 1}


@pytest.fixture
def data(tiny_composition: Path, tmp_path: Path) -> Path:
    """Return a copy that may be changed."""
    shutil.copytree(tiny_composition, tmp_path / "data")
    return tmp_path / "data"


@pytest.mark.slow
@pytest.mark.parametrize("split", ["train", "test"])
def test_a_set_that_is_exchanged_during_the_fits_ends_the_run(data: Path, tmp_path: Path, split: str) -> None:
    folder, run = data / f"composition_{split}", tmp_path / "run"
    done = []

    def exchange(step: str, fits: float, total: float, note: str, values: Mapping[str, float]) -> None:
        if step == "training" and fits >= 1 and not done:
            done.append(sorted(path.name for path in (run / "learners" / "quadratic_logit").iterdir()))
            shutil.copytree(folder, tmp_path / "other")
            scalars = tmp_path / "other" / "features.npy"
            scalars.write_bytes(scalars.read_bytes()[:-1] + b"\x00")
            folder.rename(tmp_path / "first")
            (tmp_path / "other").rename(folder)

    with pytest.raises(
        Changed, match=rf"composition_{split} changed during the work: nothing that was made of it since"
    ):
        showerstack.fit(data, run=run, callback=exchange, **OPTIONS)
    assert sorted(path.name for path in (run / "learners" / "quadratic_logit").iterdir()) == done[0] == ["fold-0"]
    with pytest.raises(InputError, match=r"does not exist|belongs to another configuration|damaged"):
        showerstack.fit(data, run=run, **OPTIONS)
    shutil.rmtree(folder)
    (tmp_path / "first").rename(folder)
    assert showerstack.fit(data, run=run, **OPTIONS).learners == ("quadratic_logit",)


def test_the_same_bytes_elsewhere_are_the_same_set(data: Path, tmp_path: Path) -> None:
    folder = data / "composition_train"
    showerstack.feature_table(folder)
    table = folder.with_name("composition_train.features")
    state = (dataset_state(folder, labelled=True), folder_state(table))
    events = ShowerEvents(folder, table, COMPOSITION, labelled=True, state=state)
    pinned, labels = events.pinned(), events.known().labels
    shutil.copytree(folder, tmp_path / "copy")
    shutil.rmtree(folder)
    (tmp_path / "copy").rename(folder)
    assert (pinned.known().labels == labels).all(), "as on another machine"
    with pytest.raises(Changed):
        events.refuse_changed()
    file = folder / COMPOSITION.label_file
    file.write_bytes(file.read_bytes()[:-1] + bytes([file.read_bytes()[-1] ^ 1]))
    for read in (pinned.known, pinned.context, pinned.fingerprint):
        with pytest.raises(Changed):
            read()
