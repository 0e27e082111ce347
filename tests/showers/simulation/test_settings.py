"""Settings refuse what makes no sense, by name, and survive a round trip through TOML."""

from importlib import resources
from pathlib import Path

import pytest

from runtime.errors import InputError
from showers.simulation.settings import WORLDS, Settings, load_settings, write_settings


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[detector]\nelectron_mev = -1.0", r"detector\.electron_mev.*greater than 0"),
        ("[detector]\nelectron_stray = 1.5", r"detector\.electron_stray"),
        ("[detector]\nelectron_cap_mev = 70000.0", r"detector\.electron_cap_mev"),
        ("[spectrum]\nlg_energy_max = 25.0", r"spectrum\.lg_energy_max"),
        ("[spectrum]\nlg_energy_min = 18.2\nlg_energy_max = 18.1", "must be above lg_energy_min"),
        ("[shape]\nage_max = 1.56", r"age_max = 1\.56 must be below 1\.55"),
        ("[shape]\nage_min = 1.5\nage_max = 1.4", "lower limits of the shapes"),
        ("[detektor]\nelectron_mev = 9.0", r"detektor.*not permitted"),
        ("[detector]\nelectron_mew = 9.0", r"detector\.electron_mew.*not permitted"),
        ("[detector]\nelectron_mev = nan", r"detector\.electron_mev"),
        ("detector = 3", "detector must be a table"),
        ("[detector", "not valid TOML"),
    ],
)
def test_bad_settings_are_refused_by_name(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "world.toml"
    file.write_text(text)
    with pytest.raises(InputError, match=message):
        load_settings(file)


def test_unknown_world_lists_the_known_ones() -> None:
    with pytest.raises(InputError, match="default, harder, easier"):
        load_settings("hardest")


def test_worlds_differ() -> None:
    assert len({load_settings(world).digest() for world in WORLDS}) == len(WORLDS)


def test_file_changes_only_what_it_says(tmp_path: Path) -> None:
    file = tmp_path / "world.toml"
    file.write_text("[trigger]\nstations = 5\n")
    assert load_settings(file) == load_settings().changed(trigger__stations=5)


@pytest.mark.parametrize("start", [Settings(), load_settings()], ids=["plain", "default world"])
def test_round_trip(tmp_path: Path, start: Settings) -> None:
    settings = start.changed(cascade__lg_ne_offset=-0.1234, detector__muon_mev=8.0, trigger__stations=6)
    write_settings(tmp_path / "w.toml", settings, "A world.")
    content = (tmp_path / "w.toml").read_text()
    assert "muon_mev = 8.0" in content
    assert "punch_photon_range_m" not in content, "what has its usual value need not be said"
    assert load_settings(tmp_path / "w.toml") == settings


def test_default_world_is_a_file_that_the_program_wrote(tmp_path: Path) -> None:
    shipped = resources.files("showers.simulation").joinpath("worlds/default.toml").read_text(encoding="utf-8")
    write_settings(tmp_path / "w.toml", load_settings(), shipped.splitlines()[0].removeprefix("# "))
    assert (tmp_path / "w.toml").read_text(encoding="utf-8") == shipped, "moved by hand, or with an outdated meaning"


def test_wrong_name_in_changed_is_refused() -> None:
    with pytest.raises(InputError, match=r"cascade\.nonsense"):
        Settings().changed(cascade__nonsense=1.0)
