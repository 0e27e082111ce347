"""Every picture renders on tiny and on degenerate data: one class missing, one event, all scores equal.

Event displays show known densities, and odd showers render.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from matplotlib.figure import Figure

from showerstack.report.display import FIT_COLUMNS, Shower, draw_event, event_picture, read_showers, ring_means
from showerstack.report.pictures.learners import gain_picture, learners_picture, shuffle_picture, training_picture
from showerstack.report.pictures.physics import flux_picture, limit_picture
from showerstack.report.pictures.style import as_svg, make_logarithmic, one_plot
from showerstack.report.pictures.tasks import (
    balanced_by_energy_picture,
    by_class_and_energy_picture,
    by_energy_picture,
    confusion_picture,
    confusions_picture,
    error_by_class_picture,
    plane_picture,
    reliability_picture,
    roc_picture,
    scores_picture,
    survival_by_bin_picture,
    survival_curve,
)
from showerstack.report.run_page import chosen_events
from showerstack.report.shared.subject import ScoredSystem
from showerstack.runtime.context import Context
from showerstack.runtime.errors import InputError
from showerstack.scoring.metrics.intervals import Interval
from showerstack.scoring.metrics.paired import paired_mean
from showerstack.scoring.score import score_arrays
from showerstack.scoring.tasks.base import Quantity
from showerstack.scoring.tasks.truth import Truth
from showerstack.showers.array import KASCADE
from showerstack.showers.dataset import Dataset
from showerstack.showers.schema import COMPOSITION, GAMMA
from showerstack.stacking.prediction.run import System

CLASSES = COMPOSITION.classes


@pytest.fixture(autouse=True)
def no_formulas(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let matplotlib parse no formula: that takes longer than the rest of a picture."""

    def refuse(self: object, text: str, *_: object) -> None:
        pytest.fail(f"{text} is drawn as a formula")

    monkeypatch.setattr("matplotlib.mathtext.MathTextParser.parse", refuse)


PLAIN = str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789")


def number(label: str) -> float:
    """Return the number that a label of a logarithmic axis says."""
    factor, _, power = label.rpartition("×")
    assert power.startswith("10")
    return float(factor or 1) * 10.0 ** int(power[2:].translate(PLAIN))


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ((0.5, 2e7), {10.0**k for k in range(0, 8, 2)}),
        ((3e-5, 0.2), {1e-4, 1e-3, 1e-2, 1e-1}),
        ((2e14, 8e15), {1e15}),
        ((1.5, 4.5), {2.0, 3.0, 4.0}),
    ],
)
@pytest.mark.parametrize("which", ["x", "y"])
def test_labels_of_a_logarithmic_axis_say_where_they_stand(
    limits: tuple[float, float], expected: set[float], which: str
) -> None:
    with one_plot(3.0) as (figure, axes):
        make_logarithmic(axes, which)
        (axes.set_xlim if which == "x" else axes.set_ylim)(*limits)
        figure.draw_without_rendering()
        axis = axes.xaxis if which == "x" else axes.yaxis
        said = {}
        for minor in (False, True):
            places, labels = axis.get_ticklocs(minor=minor), axis.get_ticklabels(minor=minor)
            said |= {place: label.get_text() for place, label in zip(places, labels, strict=True) if label.get_text()}
    for place, label in said.items():
        assert number(label) == pytest.approx(place, rel=1e-9)
    assert expected <= {float(f"{place:.6g}") for place in said if limits[0] <= place <= limits[1]}


def test_pictures_of_physics_say_their_units_in_letters() -> None:
    energy, flux = np.array([2e15, 4e15, 8e15]), np.full((3, 1), 1e-20)
    svg = check(flux_picture(energy, flux, flux / 10, flux / 5, ("proton",)), "flux")
    assert ">J E²·⁷, m⁻² sr⁻¹ s⁻¹ eV¹·⁷<" in svg
    assert ">10¹⁶<" in svg
    edges, band = np.array([[15.0, 15.5], [15.5, 16.0]]), np.full((2, 5), 1e-3)
    svg = check(limit_picture(edges, np.full(2, 2e-3), band, "fraction", integral=False, level=0.9), "limit")
    assert "×10⁻³<" in svg


def test_a_figure_is_laid_out_as_matplotlib_does_it() -> None:
    def drawn() -> Figure:
        with one_plot(2.0) as (figure, axes):
            axes.plot([0, 1], [0.123, 0.456], label="a")
            axes.set_ylabel("long label of an axis")
            figure.legend(loc="outside upper center")
        return figure

    ours, theirs = drawn(), drawn()
    as_svg(ours, "laid out")
    theirs.draw_without_rendering()
    np.testing.assert_allclose(ours.axes[0].get_position().bounds, theirs.axes[0].get_position().bounds, atol=0.01)
    assert np.abs(np.subtract(ours.axes[0].get_position().bounds, drawn().axes[0].get_position().bounds)).max() > 0.05


def truth(labels: np.ndarray) -> Truth:
    energy = np.full(len(labels), 15.2, np.float32)
    return Truth(Path("nowhere"), labels.astype(np.int8), energy, np.full(len(labels), 12.0, np.float32))


def check(figure: Figure, name: str) -> str:
    svg = as_svg(figure, name)
    assert svg.startswith("<svg")
    assert f'aria-label="{name}"' in svg
    assert "width=" not in svg[: svg.index(">")], "size comes from the page"
    return svg


@pytest.mark.parametrize("n", [5, 400])
def test_composition_pictures(n: int) -> None:
    labels = np.arange(n) % 5
    metrics = score_arrays(truth(labels), (labels + 1) % 5, COMPOSITION)
    check(confusion_picture(np.array(metrics["confusion_matrix"]), CLASSES), "confusion")
    check(error_by_class_picture(metrics), "by class")
    check(by_class_and_energy_picture(metrics), "by class and energy")
    check(by_energy_picture(metrics), "by energy")
    check(balanced_by_energy_picture(metrics), "balanced accuracy by energy")
    matrices = {f"bin {k}": (k + 1) * np.array(metrics["confusion_matrix"]) for k in range(4)}
    svg = check(confusions_picture(matrices, CLASSES), "small multiples")
    assert all(f"bin {k}" in svg for k in range(4))
    assert svg.count("predicted, % of the true class") == 1, "one scale for all"


def test_confusion_with_a_class_missing_leaves_its_row_empty() -> None:
    matrix = np.diag([4, 0, 3, 2, 1])
    svg = check(confusion_picture(matrix, CLASSES), "missing")
    assert svg.count(">100.0<") == 4
    assert svg.count(">0.0<") == 16


@pytest.mark.parametrize("n", [1, 200])
def test_reliability_and_plane_with_few_events(n: int) -> None:
    labels = np.zeros(n, int)
    certain = np.log(np.array([[1 - 4e-9, 1e-9, 1e-9, 1e-9, 1e-9]] * n))
    check(reliability_picture(labels, certain, CLASSES), "reliability")
    check(plane_picture(np.full(n, 5.0), np.full(n, 4.0), certain[:, 0], "probability", (0.0, 1.0)), "plane")


@pytest.mark.parametrize(
    "scores", [np.zeros(60), np.r_[np.ones(2), np.zeros(58)], np.linspace(3, -3, 60)], ids=["equal", "perfect", "mixed"]
)
def test_gamma_pictures(scores: np.ndarray) -> None:
    labels = np.r_[np.zeros(2, int), np.ones(58, int)]
    metrics = score_arrays(truth(labels), scores, GAMMA)
    check(roc_picture(labels, {"a": -scores, "shipped": scores}, metrics), "roc")
    check(scores_picture(labels, scores, metrics["survival_rates"]["75%"]["threshold"]), "scores")
    check(survival_by_bin_picture(metrics["energy_binned"], "energy", 58, []), "by energy")
    check(survival_by_bin_picture({}, "zenith", 58, []), "by zenith")


def test_survival_curve_agrees_with_the_metric() -> None:
    rng = np.random.default_rng(1)
    labels = (rng.random(500) > 0.2).astype(int)
    scores = rng.normal(1.0 - labels, 1.0)
    efficiency, surviving = survival_curve(labels, scores, n_points=10_000)
    metrics = score_arrays(truth(labels), scores, GAMMA)["survival_rates"]["75%"]
    k = int(np.searchsorted(efficiency, 0.75))
    assert surviving[k] == metrics["hadron_surviving"]


def test_learner_pictures() -> None:
    def scored(name: str, value: float, low: float, high: float) -> ScoredSystem:
        losses, interval = np.ones(2), Interval(low, high)
        system = System(name, np.zeros((2, 2)), losses, "score")
        return ScoredSystem(system, value, interval, Quantity("accuracy", 0.5, interval, 1), losses, 1.0, interval)

    systems = [scored("a", 0.0, 0.0, 1e-4), scored("b", 3e-4, 1e-4, 6e-4)]
    check(learners_picture(systems, "survival", logarithmic=True), "survival of learners")
    assert ">b<" in check(learners_picture(systems, "fraction error"), "learners")
    check(training_picture({"mlp": [1.2, 1.1, 1.15], "lenet": [1.3, 1.2]}), "training")


def test_importance_pictures() -> None:
    check(gain_picture({"lightgbm": {"scalars": 0.7, "fits": 0.3}, "xgboost": {"fits": 1.0}}), "gain")
    check(shuffle_picture({"scalars": paired_mean(np.array([0.1, 0.2])), "fits": paired_mean(np.zeros(3))}), "shuffled")


SCALARS = {"E": 15.3, "Ze": 20.0, "Az": 45.0, "Ne": 5.2, "Nmu": 4.4}
NO_FIT = dict.fromkeys(FIT_COLUMNS, float("nan"))
FIT = dict(zip(FIT_COLUMNS, (10.0, -20.0, 5.2, 1.0, 4.4, float("nan"), 1.1), strict=True))


def test_an_event_is_drawn_without_labels(composition_world: tuple[Path, Path], tmp_path: Path) -> None:
    folder = composition_world[1] / "composition_test"
    for name in ("event.png", "event.svg"):
        out = draw_event(folder, 3, tmp_path / name)
        assert out.stat().st_size > 10_000
    with pytest.raises(InputError, match=r"has no event 3000: expected 0..2999"):
        draw_event(folder, 3000, tmp_path / "x.png")
    with pytest.raises(InputError, match=r"ends in .png, .svg or .pdf"):
        draw_event(folder, 3, tmp_path / "x.gif")
    assert not (tmp_path / "x.png").exists()


def test_a_picture_replaces_no_file_of_another_kind(tmp_path: Path) -> None:
    notes = tmp_path / "notes.png"
    notes.write_text("not a picture")
    with pytest.raises(InputError, match=r"notes.png exists and is no .png file"):
        draw_event(tmp_path / "set", 0, notes)
    assert notes.read_text() == "not a picture"


def test_fits_of_the_display_are_those_of_the_table(tiny_composition: Path) -> None:
    from showerstack.features.build import build_table

    folder = tiny_composition / "composition_test"
    table = build_table(folder, ctx=Context(workers=1))
    events = [0, 17, 400]
    expected = table.matrix(FIT_COLUMNS, np.array(events))
    for row, shower in enumerate(read_showers(Dataset.open(folder, labels=False), events)):
        assert [shower.fit[name] for name in FIT_COLUMNS] == pytest.approx(expected[row], rel=2e-3, nan_ok=True)


@pytest.mark.parametrize("fit", [FIT, NO_FIT], ids=["fit", "no fit"])
@pytest.mark.parametrize("deposit", [0.0, 5.0, 65_504.0], ids=["empty", "faint", "saturated"])
def test_odd_showers_render(fit: dict[str, float], deposit: float) -> None:
    svg = as_svg(event_picture(Shower(np.full((16, 16, 2), deposit, np.float32), SCALARS, fit), "odd"), "odd shower")
    assert ("no fit: too few stations were hit" in svg) == (fit is NO_FIT)


def test_a_channel_that_an_array_lacks_has_no_map() -> None:
    nothing = np.zeros_like(KASCADE.muon_area_m2)
    grid = np.full((16, 16, 2), 20.0, np.float32)
    for array, channel, words in (
        (KASCADE, ["e/gamma", "muon"], "lg Nμ"),
        (replace(KASCADE, muon_area_m2=nothing), ["e/gamma"], "lg Ne"),
        (replace(KASCADE, electron_area_m2=nothing), ["muon"], "lg Nμ"),
    ):
        figure = event_picture(Shower(grid, SCALARS, FIT, array))
        maps = [axes for axes in figure.axes if axes.get_title()]
        assert [axes.get_title() for axes in maps] == channel
        assert [axes.get_ylabel() for axes in maps] == ["y, m", ""][: len(maps)]
        assert words in figure.get_suptitle()
        assert ("lg Nμ" in figure.get_suptitle()) == ("muon" in channel)


def test_ring_means_count_silent_stations() -> None:
    r_m = np.hypot(KASCADE.x_m, KASCADE.y_m).ravel()
    rho = np.where(np.arange(256) % 2, 2.0, 0.0)
    centre, mean, error = ring_means(r_m, rho)
    assert mean == pytest.approx(np.ones(len(centre)), abs=0.5)
    assert np.average(mean, weights=1 / np.maximum(error, 1e-3) ** 2) == pytest.approx(1.0, abs=0.15)


def test_gallery_chooses_confident_wrong_and_ambiguous() -> None:
    posterior = np.array([[0.99, 0.01], [0.02, 0.98], [0.5, 0.5], [0.9, 0.1], [0.95, 0.05]])
    result = chosen_events(np.array([0, 1, 0, 1, 0]), np.log(posterior))
    assert result == {"most confident": [0, 1], "most wrong": [3], "most ambiguous": [2, 4]}
    right = chosen_events(np.array([0]), np.log(np.array([[0.9, 0.1]])))
    assert right == {"most confident": [0], "most wrong": [], "most ambiguous": []}


@pytest.mark.parametrize("n_threads", [2, *(pytest.param(n, marks=pytest.mark.slow) for n in (4, 8))])
def test_pictures_in_threads_have_their_style_and_leave_matplotlibs(n_threads: int) -> None:
    def draw(k: int) -> str:
        with one_plot(1.0) as (figure, axes):
            axes.plot([0, 1], [0, k % 3])
            return as_svg(figure, f"picture {k % 3}")

    before, wanted = dict(matplotlib.rcParams), [draw(k) for k in range(3)]
    with ThreadPoolExecutor(n_threads) as pool:
        drawn = list(pool.map(draw, range(12)))
    assert drawn == [wanted[k % 3] for k in range(12)]
    assert dict(matplotlib.rcParams) == before
