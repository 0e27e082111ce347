"""Event displays: known densities come back, and odd showers render."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from report.display import FIT_COLUMNS, Shower, draw_event, event_picture, read_showers, ring_means
from report.pictures.style import as_svg
from report.run_page import chosen_events
from runtime.errors import InputError
from showers.array import KASCADE
from showers.dataset import Dataset

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
    from features.build import build_table

    folder = tiny_composition / "composition_test"
    table = build_table(folder, workers=1)
    events = [0, 17, 400]
    expected = table.matrix(FIT_COLUMNS, np.array(events))
    for row, shower in enumerate(read_showers(Dataset.open(folder, labels=False), events)):
        assert [shower.fit[name] for name in FIT_COLUMNS] == pytest.approx(expected[row], rel=2e-3, nan_ok=True)


@pytest.mark.parametrize("fit", [FIT, NO_FIT], ids=["fit", "no fit"])
@pytest.mark.parametrize("deposit", [0.0, 5.0, 65_504.0], ids=["empty", "faint", "saturated"])
def test_odd_showers_render(fit: dict[str, float], deposit: float) -> None:
    svg = as_svg(event_picture(Shower(np.full((16, 16, 2), deposit, np.float32), SCALARS, fit), "odd"), "odd shower")
    assert ("no fit: too few stations were hit" in svg) == (fit is NO_FIT)


def test_ring_means_count_silent_stations() -> None:
    r_m = np.hypot(KASCADE.x_m, KASCADE.y_m).ravel()
    rho = np.where(np.arange(256) % 2, 2.0, 0.0)
    centre, mean, error = ring_means(r_m, rho)
    assert mean == pytest.approx(np.ones(len(centre)), abs=0.5)
    assert np.average(mean, weights=1 / np.maximum(error, 1e-3) ** 2) == pytest.approx(1.0, abs=0.15)


def test_gallery_chooses_confident_wrong_and_ambiguous() -> None:
    posterior = np.array([[0.99, 0.01], [0.02, 0.98], [0.5, 0.5], [0.9, 0.1], [0.95, 0.05]])
    found = chosen_events(np.array([0, 1, 0, 1, 0]), np.log(posterior))
    assert found["most confident"] == [0, 1]
    assert found["most wrong"][0] == 3
    assert found["most ambiguous"][0] == 2
    assert chosen_events(np.array([0]), np.log(np.array([[0.9, 0.1]])))["most wrong"] == [0]
