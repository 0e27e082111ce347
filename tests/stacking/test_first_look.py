"""A first look scores showers of any array without training, and says so in every output."""

import shutil
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import showerstack
from benchmarks.fits.arrays import cases
from benchmarks.shared.drawn import FOREIGN, drawn
from showerstack.models.pretraining import distance
from showerstack.models.pretraining.distance import Distance, distance_of
from showerstack.models.pretraining.weights import ANY, read_pretrained
from showerstack.report.public.leaderboard import standing
from showerstack.runtime.context import Context
from showerstack.runtime.errors import InputError
from showerstack.runtime.files import read_json
from showerstack.scoring.score import score_file
from showerstack.showers.schema import COMPOSITION, ENERGY, FIRST_LOOK, GAMMA
from showerstack.stacking.prediction.first_look import first_look
from tests.program import call

CTX = Context(device="cpu", workers=1)
COMPARED: list[int] = []
"""Numbers of showers whose distance was asked for."""


@pytest.fixture(autouse=True, scope="module")
def compared() -> Iterator[list[Distance]]:
    """Distances that are found one after another, the last one ever after: worlds are drawn in the slow test alone."""
    found = [Distance(0.8, np.linspace(0.5, 1.1, 100), ())]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(distance, "distance_of", lambda _, events, *__: COMPARED.append(len(events)) or found[-1])
        yield found


@pytest.fixture(scope="module")
def looked(
    compared: list[Distance], tiny_composition: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Path]:
    """Predictions, and the folder of the test set without its labels' meaning being known."""
    file = tmp_path_factory.mktemp("look") / "first.npz"
    stream = first_look(tiny_composition / "composition_test", COMPOSITION, CTX)
    assert stream.remarks[0].startswith("first look: the weights were not trained at KASCADE")
    assert stream.remarks[-1] == "50 of 100 drawn worlds lie further from the others than these showers"
    stream.write(file)
    return file, tiny_composition


def test_showers_are_told_apart_without_training(looked: tuple[Path, Path]) -> None:
    metrics = score_file(*looked, COMPOSITION, write=False)
    assert metrics["accuracy"] > 0.4, "random: 0.2; measured: 0.5"
    assert "first.npz is a first look: pretrained weights without training at this array" in metrics["warnings"]
    with np.load(looked[0]) as stored:
        assert np.exp(stored["log_proba"]).sum(axis=1) == pytest.approx(1)
        assert str(stored["config_hash"]).startswith(FIRST_LOOK)
    assert standing(*looked).system == "first (first look: not trained)"


def test_a_first_look_needs_no_labels_and_marks_tables(looked: tuple[Path, Path], tmp_path: Path) -> None:
    file, data = looked
    shutil.copytree(data / "composition_test", tmp_path / "bare")
    (tmp_path / "bare" / "labels_composition.npy").unlink()
    look = first_look(tmp_path / "bare", COMPOSITION, CTX)
    look.write(tmp_path / "first.csv")
    assert read_json(tmp_path / "first.csv.json")["config_hash"].startswith(FIRST_LOOK)
    again = first_look(tmp_path / "bare", COMPOSITION, CTX).concatenated()
    with np.load(file) as stored:
        np.testing.assert_array_equal(again.log_proba, stored["log_proba"])
    predicted = showerstack.first_look(tmp_path / "bare", task="composition", workers=1)
    np.testing.assert_array_equal(np.log(predicted.probabilities), np.log(np.exp(again.log_proba)))
    assert predicted.remarks[0].startswith(FIRST_LOOK)
    gammas = first_look(tmp_path / "bare", GAMMA, CTX).concatenated()
    assert gammas.scores is not None
    assert np.isfinite(gammas.scores).all()


def test_groups_that_are_not_there_get_nothing(looked: tuple[Path, Path], tmp_path: Path) -> None:
    file, data = looked
    two = COMPOSITION.with_classes(("proton", "iron"))
    found = first_look(data / "composition_test", two, CTX).concatenated()
    with np.load(file) as stored:
        five = stored["log_proba"][:, [0, 4]]
    among = five - np.logaddexp.reduce(five, axis=1, keepdims=True)
    np.testing.assert_allclose(found.log_proba, among, atol=1e-6)
    assert set(found.arrays["predictions"]) == {0, 4}
    words = ("--weights", "any-array", "--groups", "proton,iron", "--data", data / "composition_test")
    call("cli.py", "predict", *words, "--out", tmp_path / "two.npz")
    with np.load(tmp_path / "two.npz") as stored:
        np.testing.assert_array_equal(stored["log_proba"], found.log_proba)
    shown = showerstack.first_look(data / "composition_test", task="composition", groups=("proton", "iron"), workers=1)
    assert (shown.classes, set(shown.labels)) == (("proton", "iron"), {0, 4})


def test_what_weights_do_not_know_is_refused(looked: tuple[Path, Path]) -> None:
    folder = looked[1] / "composition_test"
    with pytest.raises(InputError, match="pretrained weights know composition and gamma, not energy"):
        first_look(folder, ENERGY, CTX)
    with pytest.raises(InputError, match="unknown weights 'best': choose shipped or any-array"):
        first_look(folder, COMPOSITION, CTX, weights="best")


def test_showers_unlike_all_that_was_seen_are_refused(
    compared: list[Distance], looked: tuple[Path, Path], tmp_path: Path
) -> None:
    folder = looked[1] / "composition_test"
    compared.append(Distance(1.5, np.linspace(0.5, 1.1, 100), ("fit_age -3.6", "slope_e_40_63 -3.1")))
    words = (
        "unlike all that the weights have seen: distance 1.50, of drawn worlds 0.80 .median. to 1.10, furthest in fit_"
    )
    with pytest.raises(InputError, match=words):
        first_look(folder, COMPOSITION, CTX)
    asked = ("--weights", "any-array", "--data", folder, "--out", tmp_path / "first.npz")
    assert "give --anyway" in call("cli.py", "predict", *asked, code=2).stderr
    call("cli.py", "predict", *asked, "--anyway")
    found = showerstack.first_look(folder, task="composition", anyway=True, workers=1)
    with np.load(tmp_path / "first.npz") as stored:
        np.testing.assert_array_equal(stored["log_proba"].argmax(axis=1), found.probabilities.argmax(axis=1))
    assert found.remarks[-1].startswith("these showers are unlike all")
    compared.pop()


def test_uses_of_a_shower_are_compared_once(looked: tuple[Path, Path], tmp_path: Path) -> None:
    shutil.copytree(looked[1] / "composition_test", tmp_path / "used", ignore=shutil.ignore_patterns("checksums.json"))
    n = len(np.load(tmp_path / "used" / "features.npy", mmap_mode="r"))
    np.save(tmp_path / "used" / "groups.npy", np.arange(n) // 8)
    first_look(tmp_path / "used", COMPOSITION, CTX)
    assert COMPARED[-1] == -(-n // 8) > 50


@pytest.mark.slow
def test_a_world_with_other_lateral_forms_is_far_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    array = next(case.array for case in cases() if case.name == "37 stations, 3,000 m")
    pretrained, draw = read_pretrained(ANY), distance.draw_at
    world_of = cache(lambda number: draw(array, COMPOSITION, number))  # the same for both
    monkeypatch.setattr(distance, "draw_at", lambda array, task, number: world_of(number))
    for world, outside in (("harder", False), (FOREIGN, True)):
        batch, _ = drawn(world, "composition", 600, seed=9, split="test", data=tmp_path, array=array, elsewhere=True)
        found = distance_of(pretrained, replace(batch, labels=None), COMPOSITION, CTX)
        widths = (found.value - found.of_worlds.mean()) / found.of_worlds.std()
        assert (widths > 2.5) == outside, f"{world}: {widths:.1f}, {found.words}; measured: -0.2 and 4.2"
