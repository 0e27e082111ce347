"""Mass groups of a set's own: names and nuclei go from conversion through training to scores, and are never mixed up
with the benchmark's."""

import shutil
import warnings
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch

import showerstack
from showerstack.analysis.options import SpectraOptions
from showerstack.analysis.spectra.files import write_spectra
from showerstack.analysis.spectra.response import ALL, MassGroups
from showerstack.analysis.spectra.run import measure_spectra
from showerstack.estimators import ShowerClassifier
from showerstack.models.pretraining import distance
from showerstack.models.pretraining.learner import PretrainedLearner
from showerstack.models.pretraining.weights import read_pretrained
from showerstack.report.doctor.folders import dataset_findings
from showerstack.report.public.leaderboard import leaderboard
from showerstack.report.shared.subject import read_labels
from showerstack.runtime.context import Context
from showerstack.runtime.errors import InputError, Remark
from showerstack.runtime.files import read_json, write_json
from showerstack.scoring.metrics.composition import fraction_error
from showerstack.scoring.score import score_file, task_of
from showerstack.showers.archives.formats import labels_of
from showerstack.showers.dataset import Dataset
from showerstack.showers.kascade import LN_MASSES, mass_moments
from showerstack.showers.nuclei import composition_of, groups_asked, groups_entry
from showerstack.showers.schema import COMPOSITION, GAMMA, OWN_LABELS_FILE
from showerstack.showers.simulation import simulate
from showerstack.stacking.config import StackConfig
from showerstack.stacking.export.exported import open_run
from showerstack.stacking.export.writer import export_run
from showerstack.stacking.prediction.predict import predict
from showerstack.stacking.prediction.run import Run
from showerstack.stacking.training.train import stack

WORDS = "light=H+He, iron=Fe, CNO=C+N+O"
GROUPS = groups_asked(WORDS)
OF_FIVE = np.array([0, 0, 1, -1, 2], dtype=np.int8)
"""Which of these groups each of the five belongs to; nobody's silicon."""


def test_groups_have_names_of_the_field() -> None:
    assert GROUPS.classes == ("light", "CNO", "iron"), "from the lightest on, whatever was said"
    assert GROUPS.masses == ((1, 4), (12, 14, 16), (56,))
    assert GROUPS.ln_masses == pytest.approx([np.log(4) / 2, np.log(12 * 14 * 16) / 3, np.log(56)])
    assert groups_asked("p, Fe") == groups_asked("proton,iron") == COMPOSITION.with_classes(("proton", "iron"))
    assert groups_asked("proton,helium,carbon,silicon,iron") is COMPOSITION
    four = groups_asked("H,He,oxygen,Fe")
    assert (four.classes, four.labels) == (("proton", "helium", "oxygen", "iron"), (0, 1, 2, 3))
    assert groups_asked("1,4,16").classes == ("proton", "helium", "16")
    for task in (GROUPS, four, COMPOSITION.with_classes(("carbon", "iron"))):
        assert composition_of(groups_entry(task)["groups"], "a") == task
    assert groups_entry(COMPOSITION) == groups_entry(GAMMA) == {}
    np.testing.assert_array_equal(COMPOSITION.ln_masses, LN_MASSES)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("proton", "two or more groups"),
        ("proton,oxigen", r"'oxigen' is no nucleus \(did you mean oxygen\?\)"),
        ("light=H+He,proton", "mass number 1 is in two groups"),
        ("a=C,a=O", "a stands twice"),
        ("a=,b=O", "'' is no nucleus"),
        ("a=61,b=O", "'61' is no nucleus"),
        ("all=H,b=O", "cannot be called 'all'"),
        ("a b=H,b=O", "cannot be called 'a b'"),
    ],
)
def test_groups_that_make_no_sense_are_refused(words: str, why: str) -> None:
    with pytest.raises(InputError, match=why):
        groups_asked(words)


@pytest.mark.parametrize("entry", [{"a": [1], "b": []}, {"a": [1], "b": [4.0]}, {"a": [1], "b": [True]}, 3, ["a", 1]])
def test_damaged_entries_are_refused(entry: object) -> None:
    with pytest.raises(InputError, match="expected names of groups"):
        composition_of(entry, "source.json")


def test_nuclei_go_to_the_group_of_the_nearest_one() -> None:
    named = np.array(["Fe", "p", "nitrogen", "He", "CNO", "Mg", "light"])
    assert labels_of(named, GROUPS, "a.csv", 0).tolist() == [2, 0, 1, 0, 1, 1, 0]
    assert labels_of(np.array([0, 2]), GROUPS, "a.csv", 0).tolist() == [0, 2]
    assert labels_of(np.array(["Fe", "p"]), COMPOSITION.with_classes(("proton", "iron")), "a", 0).tolist() == [4, 0]
    assert GROUPS.class_of_mass([1, 6, 7, 29, 30]).tolist() == [0, 0, 1, 1, 2], "borders lie between ln A"
    with pytest.raises(InputError, match=r"event 1 has label 3 .* expected 0\.\.2 or light, CNO, iron"):
        labels_of(np.array([0, 3]), GROUPS, "a.csv", 0)


def relabelled(folder: Path, source: dict[str, object]) -> Path:
    """Give a simulated set of proton, helium, carbon and iron the labels of own groups, as one would by hand."""
    labels = OF_FIVE[np.load(folder / "labels_composition.npy")]
    assert labels.min() == 0
    np.save(folder / OWN_LABELS_FILE, labels)
    (folder / "labels_composition.npy").unlink()
    (folder / "checksums.json").unlink()
    write_json(folder / "source.json", {"evaluation_cuts": "none", **groups_entry(GROUPS), **source})
    return folder


@pytest.fixture(scope="module")
def three_groups(tmp_path_factory: pytest.TempPathFactory) -> Path:
    data = tmp_path_factory.mktemp("three")
    some = COMPOSITION.with_classes(("proton", "helium", "carbon", "iron"))
    for folder in simulate(some, data, n_train=800, n_test=400, seed=7, train_cuts="test", workers=1):
        relabelled(folder, {})
    config = StackConfig(
        task="composition", data=data, run=data / "run", preset="quick", learners=("quadratic_logit",), folds=2,
        workers=1, device="cpu",
    )  # fmt: skip
    stack(config)
    return data


def test_a_set_with_own_groups_is_stacked_predicted_and_scored(three_groups: Path, tmp_path: Path) -> None:
    run = Run.open(three_groups / "run")
    assert run.task == GROUPS
    test = three_groups / "composition_test"
    truth = np.load(test / OWN_LABELS_FILE)
    with np.load(run.predictions) as stored:
        assert "predictions" not in stored, "its numbers would be taken for the benchmark's"
        predicted, log_proba = stored["mass_groups"], stored["log_proba"]
    assert log_proba.shape == (len(truth), 3)
    assert (predicted == truth).mean() > 0.58
    assert task_of(run.predictions) == COMPOSITION
    metrics = score_file(run.predictions, three_groups, COMPOSITION)
    assert metrics["mean_fraction_error"] == fraction_error(truth, predicted, n_classes=3)
    assert list(metrics["per_class"]) == ["light", "CNO", "iron"]
    mean, width = mass_moments(log_proba, GROUPS)
    predict(run, test, Context(device="cpu", workers=1)).write(tmp_path / "p.csv")
    table = pl.read_csv(tmp_path / "p.csv")
    assert table["ln_a"].to_numpy() == pytest.approx(mean, abs=1e-6)
    assert table["ln_a"].to_numpy() == pytest.approx(
        table.select("p_light", "p_CNO", "p_iron").to_numpy() @ GROUPS.ln_masses, abs=1e-6
    )
    assert table["ln_a_error"].to_numpy() == pytest.approx(width, abs=1e-6)
    found = {one.what: one for one in dataset_findings(three_groups / "composition_train")}
    assert found["classes"].outcome.startswith("light ")
    with pytest.raises(InputError, match="has 3 mass groups: lists are of the benchmark's five"):
        leaderboard([run.folder], data=three_groups)


@pytest.mark.slow
def test_an_export_knows_them(three_groups: Path, tmp_path: Path) -> None:
    export_run(three_groups / "run", tmp_path / "export")
    assert open_run(tmp_path / "export").task == GROUPS
    found, again = (
        showerstack.predict(run, three_groups / "composition_test", workers=1)
        for run in (three_groups / "run", tmp_path / "export")
    )
    np.testing.assert_array_equal(found.labels, again.labels)


def test_python_knows_them(three_groups: Path, tmp_path: Path) -> None:
    test = three_groups / "composition_test"
    found = showerstack.predict(three_groups / "run", test, workers=1)
    assert found.classes == GROUPS.classes
    shares = [np.mean(found.labels == label) for label in range(3)]
    assert f"light {100 * shares[0]:.0f} %, CNO {100 * shares[1]:.0f} %, iron {100 * shares[2]:.0f} %" in repr(found)
    metrics = score_file(Run.open(three_groups / "run").predictions, three_groups, COMPOSITION, write=False)
    assert float(showerstack.score(found, three_groups)) == metrics["mean_fraction_error"]
    file = showerstack.save_predictions(tmp_path / "p.npz", found.labels, test, task="composition")
    saved = score_file(file, three_groups, COMPOSITION, write=False)
    assert saved["mean_fraction_error"] == metrics["mean_fraction_error"]
    options = {"preset": "quick", "learners": ("quadratic_logit",), "folds": 2, "workers": 1, "device": "cpu"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Remark)
        model = ShowerClassifier(task="composition", run=tmp_path / "again", **options).fit(three_groups)
        decided = model.predict(test)
    np.testing.assert_array_equal(model.classes_, [0, 1, 2])
    np.testing.assert_array_equal(decided, found.labels)


def test_groups_are_not_mixed_up(three_groups: Path, tiny_composition: Path, tmp_path: Path) -> None:
    run = Run.open(three_groups / "run")
    with pytest.raises(InputError, match="holds no array 'predictions'"):
        score_file(run.predictions, tiny_composition, COMPOSITION, write=False)
    found = showerstack.predict(run.folder, three_groups / "composition_test", workers=1)
    with pytest.raises(InputError, match=r"the predictions are of light, CNO, iron, but .* has proton, helium"):
        showerstack.score(found, tiny_composition)
    alike = showerstack.Predicted(
        "composition", ("a", "b", "c"), found.probabilities, found.labels, None, class_labels=(0, 1, 2)
    )
    with pytest.raises(InputError, match=r"the predictions are of a, b, c, but .* has light, CNO, iron"):
        showerstack.score(alike, three_groups)
    other = shutil.copytree(three_groups, tmp_path / "other", ignore=shutil.ignore_patterns("run", "*.features"))
    relabelled_as = {"p": [1], "other": [4, 14, 56]}
    write_json(other / "composition_test" / "source.json", {"groups": relabelled_as})
    with pytest.raises(InputError, match="has the mass groups p, other, not light, CNO, iron"):
        read_labels(run, other)
    with pytest.raises(InputError, match=r"holds label 2, expected 0\.\.1"):
        Dataset.open(other / "composition_test")
    write_json(other / "composition_train" / "source.json", {"groups": {"light": [1, 4], "CNO": [12], "iron": [56]}})
    trained, renamed = (Dataset.open(one / "composition_train") for one in (three_groups, other))
    np.testing.assert_array_equal(trained.labels, renamed.labels)
    assert trained.labels_fingerprint() != renamed.labels_fingerprint()
    write_json(other / "composition_test" / "source.json", {})
    with pytest.raises(InputError, match=r"source.json, groups: expected names of groups"):
        Dataset.open(other / "composition_test")
    write_json(other / "composition_test" / "source.json", {"groups": {"iron": [56], "light": [1, 4]}})
    with pytest.raises(InputError, match="labels count from the lightest on: expected the order light, iron"):
        Dataset.open(other / "composition_test")
    write_json(other / "composition_test" / "source.json", {"groups": {"proton": [1], "iron": [56]}})
    with pytest.raises(InputError, match="is for other groups than the benchmark's"):
        Dataset.open(other / "composition_test")
    (other / "composition_train" / OWN_LABELS_FILE).unlink()
    with pytest.raises(InputError, match="no label file"):
        Dataset.open(other / "composition_train")
    with pytest.raises(InputError, match="the simulation throws nuclei of proton, helium"):
        simulate(GROUPS, tmp_path / "thrown", n_train=10, n_test=10)


def test_pretrained_weights_start_groups_from_the_mean_of_their_members() -> None:
    learner = PretrainedLearner(GROUPS.classes, {"masses": [list(masses) for masses in GROUPS.masses]})
    network = learner.build(read_pretrained("shipped").inputs, 3, None)  # type: ignore[arg-type]
    learner._initialise(network)
    five = read_pretrained("shipped").network.composition
    start = dict(network.head.named_parameters())
    torch.testing.assert_close(start["weight"][0], five.weight[:2].mean(dim=0), rtol=0, atol=1e-7)
    torch.testing.assert_close(start["weight"][1:], five.weight[[2, 4]], rtol=0, atol=0)
    torch.testing.assert_close(start["bias"][1:], five.bias[[2, 4]], rtol=0, atol=0)


def test_nuclei_of_other_classes_are_refused() -> None:
    with pytest.raises(InputError, match="masses are of 3 groups, but there are 5 classes"):
        PretrainedLearner(COMPOSITION.classes, {"masses": [list(masses) for masses in GROUPS.masses]})


def test_a_first_look_sums_the_members(three_groups: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distance, "distance_of", lambda *_: distance.Distance(0.8, np.ones(100), ()))
    test = three_groups / "composition_test"
    five = showerstack.first_look(test, task="composition", weights="shipped", workers=1)
    own = showerstack.first_look(test, task="composition", weights="shipped", groups=WORDS.split(", "), workers=1)
    members = five.probabilities[:, [0, 2, 4]]
    members[:, 0] = five.probabilities[:, :2].mean(axis=1)
    expected = members / members.sum(axis=1, keepdims=True)
    assert own.probabilities == pytest.approx(expected, abs=1e-9)
    with pytest.raises(InputError, match="task gamma has no mass groups"):
        showerstack.first_look(test, task="gamma", groups=["proton", "iron"])


def test_sums_and_charges_of_own_groups() -> None:
    groups = MassGroups.of(GROUPS)
    assert list(groups.sums) == ["heavy", ALL], "its own light is the sum of light nuclei"
    assert groups.missing == ("silicon",)
    assert groups.charges == pytest.approx([np.interp(2.5, [1, 4], [1, 2]), 7, 26])
    assert groups.means_of_five((1.0, 3.0, 5.0, 7.0, 9.0)) == pytest.approx([2.0, 5.0, 9.0])
    heavy = MassGroups.of(groups_asked("CNO=C+N+O,iron"))
    assert list(heavy.sums) == [ALL]


@pytest.mark.slow
def test_spectra_are_of_own_groups(three_groups: Path, tmp_path: Path) -> None:
    some = COMPOSITION.with_classes(("proton", "helium", "carbon", "iron"))
    simulation, data = (
        relabelled(simulate(some, tmp_path / str(k), n_train=10, n_test=1300, seed=k, workers=1)[1], {}) for k in (8, 9)
    )
    options = SpectraOptions(
        run=three_groups / "run", data=[data], simulation=[simulation], exposure="1e10", out=tmp_path / "spectra",
        edges=(15.2, 15.6, 16.2),
    )  # fmt: skip
    result = measure_spectra(options, Context(device="cpu", workers=1))
    write_spectra(result, options.out)
    share = result.fluxes.flux / result.fluxes.flux.sum(axis=1, keepdims=True)
    assert share[0] == pytest.approx([0.5, 0.25, 0.25], abs=0.35)
    assert read_json(tmp_path / "spectra" / "spectra.json")["groups"] == ["light", "CNO", "iron"]
    assert any("nature's silicon are taken for these" in one for one in result.remarks)
