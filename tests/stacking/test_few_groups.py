"""Composition with the mass groups that a set has: protons and iron are told apart, and labels stay the benchmark's."""

import warnings
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest

import showerstack
from showerstack.analysis.options import SpectraOptions
from showerstack.analysis.spectra.files import write_spectra
from showerstack.analysis.spectra.run import measure_spectra
from showerstack.estimators import ShowerClassifier
from showerstack.report.doctor.folders import dataset_findings
from showerstack.report.pictures.style import PALETTE
from showerstack.report.pictures.tasks import error_by_class_picture
from showerstack.report.public.leaderboard import leaderboard
from showerstack.report.task_sections import fraction_errors
from showerstack.runtime.context import Context
from showerstack.runtime.errors import InputError, Remark
from showerstack.runtime.files import read_json
from showerstack.scoring.metrics.composition import fraction_error, mixture_fractions
from showerstack.scoring.score import score_file
from showerstack.scoring.tasks import scoring_of
from showerstack.showers.archives.formats import labels_of
from showerstack.showers.schema import COMPOSITION, GAMMA
from showerstack.showers.simulation import simulate
from showerstack.stacking.config import StackConfig
from showerstack.stacking.prediction.predict import predict
from showerstack.stacking.prediction.run import Run
from showerstack.stacking.training.train import stack


@pytest.fixture(scope="module")
def two_groups(tmp_path_factory: pytest.TempPathFactory) -> Path:
    data = tmp_path_factory.mktemp("two")
    task = COMPOSITION.with_classes(("proton", "iron"))
    for folder in simulate(task, data, n_train=800, n_test=400, seed=7, train_cuts="test", workers=1):
        assert set(np.load(folder / "labels_composition.npy")) == {0, 4}
        assert read_json(folder / "source.json")["groups"] == ["proton", "iron"]
    config = StackConfig(
        task="composition", data=data, run=data / "run", preset="quick", learners=("quadratic_logit",), folds=2,
        workers=1, device="cpu",
    )  # fmt: skip
    stack(config)
    return data


def test_a_set_of_protons_and_iron_is_stacked_and_scored(two_groups: Path) -> None:
    run = Run.open(two_groups / "run")
    assert run.task == COMPOSITION.with_classes(("iron", "proton"))
    assert (run.task.classes, run.task.labels) == (("proton", "iron"), (0, 4))
    truth = np.load(two_groups / "composition_test" / "labels_composition.npy")
    with np.load(run.predictions) as stored:
        predicted, log_proba = stored["predictions"], stored["log_proba"]
    assert log_proba.shape == (len(truth), 2)
    assert set(predicted) == {0, 4}
    assert (predicted == truth).mean() > 0.8
    metrics = score_file(run.predictions, two_groups, COMPOSITION)
    assert list(metrics["per_class"]) == ["proton", "iron"]
    assert metrics["mean_fraction_error"] == fraction_error(truth // 4, predicted // 4, n_classes=2)
    said = "2 mass groups, proton, iron: random labels have a fraction error of 0.273, and no error of other groups"
    assert any(line.startswith(said) for line in metrics["warnings"])
    assert any("has showers of proton, iron alone" in line for line in run.manifest.remarks)
    drawn = SimpleNamespace(metrics=metrics | {"energy_binned": {}}, task=COMPOSITION.with_classes(("proton", "iron")))
    (axes,) = error_by_class_picture(metrics).axes
    colours = [line.get_color() for line in axes.lines if line.get_marker() != "None"]
    assert colours == [PALETTE[0], PALETTE[4]], "iron has its colour among the five"
    assert "over 11 mixtures" in fraction_errors(drawn).body  # type: ignore[arg-type]
    with pytest.raises(InputError, match="has 2 mass groups: lists are of the benchmark's five"):
        leaderboard([run.folder], data=two_groups)


def test_the_mean_logarithmic_mass_of_every_event_is_in_tables(two_groups: Path, tmp_path: Path) -> None:
    run = Run.open(two_groups / "run")
    predict(run, two_groups / "composition_test", Context(device="cpu", workers=1)).write(tmp_path / "p.csv")
    table = pl.read_csv(tmp_path / "p.csv")
    iron, ln_56 = table["p_iron"].to_numpy(), np.log(56)
    assert table["ln_a"].to_numpy() == pytest.approx(iron * ln_56, abs=1e-6)
    assert table["ln_a_error"].to_numpy() == pytest.approx(ln_56 * np.sqrt(iron * (1 - iron)), abs=1e-3)


def test_python_speaks_of_labels_as_files_have_them(two_groups: Path, tmp_path: Path) -> None:
    test = two_groups / "composition_test"
    truth = np.load(test / "labels_composition.npy")
    found = showerstack.predict(two_groups / "run", test, workers=1)
    assert set(found.labels) == {0, 4}
    shares = [np.mean(found.labels == label) for label in (0, 4)]
    assert f"proton {100 * shares[0]:.0f} %, iron {100 * shares[1]:.0f} %" in repr(found)
    by_labels = showerstack.score(found.labels, truth, task="composition")
    assert float(showerstack.score(found, two_groups)) == float(by_labels)
    options = {"preset": "quick", "learners": ("quadratic_logit",), "folds": 2, "workers": 1, "device": "cpu"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Remark)
        model = ShowerClassifier(task="composition", run=tmp_path / "again", **options).fit(two_groups)
    np.testing.assert_array_equal(model.classes_, [0, 4])
    np.testing.assert_array_equal(model.predict(test), found.labels)


def test_a_test_set_with_other_groups_than_the_run_is_refused(two_groups: Path, tiny_composition: Path) -> None:
    from showerstack.report.shared.subject import read_labels

    with pytest.raises(InputError, match=r"labels are outside 0 \(proton\), 4 \(iron\)"):
        read_labels(Run.open(two_groups / "run"), tiny_composition)


@pytest.fixture(scope="module")
def unseen_sets(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two sets of protons and iron that no run was trained on."""
    task, place = COMPOSITION.with_classes(("proton", "iron")), tmp_path_factory.mktemp("sets")
    return [simulate(task, place / str(seed), n_train=10, n_test=700, seed=seed, workers=1)[1] for seed in (8, 9)]


def test_spectra_are_of_the_groups_that_run_and_simulation_hold(
    two_groups: Path, unseen_sets: list[Path], tiny_composition: Path, tmp_path: Path
) -> None:
    simulation, data = unseen_sets
    options = SpectraOptions(
        run=two_groups / "run", data=[data], simulation=[simulation], exposure="1e10", out=tmp_path / "spectra",
        edges=(15.2, 15.6, 16.2),
    )  # fmt: skip
    result = measure_spectra(options, Context(device="cpu", workers=1))
    write_spectra(result, options.out)
    share = result.fluxes.flux / result.fluxes.flux.sum(axis=1, keepdims=True)
    assert share[0] == pytest.approx([0.5, 0.5], abs=0.3)  # thrown alike
    assert read_json(tmp_path / "spectra" / "spectra.json")["groups"] == ["proton", "iron"]
    assert any("nature's helium, carbon, silicon are taken for these" in one for one in result.remarks)
    wrong = replace(options, simulation=[tiny_composition / "composition_test"], out=tmp_path / "wrong")
    with pytest.raises(InputError, match=r"holds label \d, expected 0 \(proton\), 4 \(iron\)"):
        measure_spectra(wrong, Context(device="cpu", workers=1))


def test_groups_of_a_task() -> None:
    assert COMPOSITION.among(np.arange(5)) is COMPOSITION
    assert COMPOSITION.among(np.full(3, 2)) is COMPOSITION, "one group is none to be told apart"
    some = COMPOSITION.among(np.array([3, 0, 3, 1]))
    assert some.classes == ("proton", "helium", "silicon")
    assert some.encoded(np.array([3, 0, 1])).tolist() == [2, 0, 1]
    assert some.decoded(np.array([2, 0, 1])).tolist() == [3, 0, 1]
    assert GAMMA.among(np.zeros(3)) is GAMMA
    with pytest.raises(InputError, match="task 'composition' has no class 'gold'"):
        COMPOSITION.with_classes(("gold", "iron"))
    named = np.array(["Fe", "p", "nitrogen", "He", "Mg"])
    assert labels_of(named, COMPOSITION, "a.csv", 0).tolist() == [4, 0, 2, 1, 3]


@pytest.mark.parametrize("n_classes", [2, 3, 4, 5])
def test_the_random_level_of_fewer_groups(n_classes: int) -> None:
    """Random labels have the closed form's error, and it falls with the number of groups."""
    rng = np.random.default_rng(5)
    labels, predicted = rng.integers(0, n_classes, (2, 60_000))
    task = COMPOSITION.with_classes(COMPOSITION.classes[:n_classes])
    scoring = scoring_of(task)
    assert scoring.metric.value(labels, predicted) == pytest.approx(scoring.random_error, abs=0.006)
    assert len(mixture_fractions(n_classes)) == {2: 11, 3: 66, 4: 286, 5: 1001}[n_classes]
    interval = scoring.metric.interval(labels[:2000], predicted[:2000])
    assert interval.low < scoring.metric.value(labels[:2000], predicted[:2000]) < interval.high
    errors = [scoring_of(COMPOSITION.with_classes(COMPOSITION.classes[:k])).random_error for k in (2, 3, 4, 5)]
    assert all(one > other for one, other in pairwise(errors))


def test_few_showers_of_two_groups_are_told_to_train_pretrained_alone(two_groups: Path) -> None:
    found = {one.what: one for one in dataset_findings(two_groups / "composition_train")}
    assert found["training"].outcome.startswith("with 800 training showers pretrained alone is trained: lightgbm, ")
    assert found["classes"].state == "note"
    assert "training" not in {one.what for one in dataset_findings(two_groups / "composition_test")}
