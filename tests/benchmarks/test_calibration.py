"""The shipped world is what the recorded fits ended with; the record is of the constants that are fitted today."""

from __future__ import annotations

import json
import tomllib

import pytest

from benchmarks.world.calibrate import GROUPS, MODELS, RECORD
from showers.simulation import load_settings
from showers.simulation.settings import Settings

START = RECORD.with_name("calibration_start.toml")
ORDER = ("hadrons", "models")
"""The photons keep the constants with which these fits began."""
FREE = {name: free for name, (free, _, _) in GROUPS.items()} | {"models": MODELS}


def value(content: dict[str, dict[str, float]], name: str) -> float:
    section, field = name.split("__")
    return content[section][field]


def recorded() -> dict[str, dict[str, dict[str, float]]]:
    return json.loads(RECORD.read_text(encoding="utf-8"))


def test_default_world_is_what_the_fits_ended_with() -> None:
    expected = tomllib.loads(START.read_text(encoding="utf-8"))
    for group in ORDER:
        for name, ended in recorded()[group]["ended"].items():
            section, field = name.split("__")
            expected[section][field] = ended
    found = load_settings().model_dump()
    wrong = {
        f"{section}__{field}": (found[section][field], number)
        for section, values in expected.items()
        for field, number in values.items()
        if found[section][field] != pytest.approx(number, rel=1e-5)
    }
    assert not wrong, "moved by hand, or fitted without a record"


@pytest.mark.parametrize("group", ORDER)
def test_record_is_of_the_constants_fitted_today(group: str) -> None:
    assert set(recorded()[group]["ended"]) == {free.name for free in FREE[group]}


def test_each_fit_begins_where_the_one_before_ended() -> None:
    content = tomllib.loads(START.read_text(encoding="utf-8"))
    assert {s: set(v) for s, v in content.items()} == {s: set(v) for s, v in Settings().model_dump().items()}
    for group in ORDER:
        for name, began in recorded()[group]["began"].items():
            assert value(content, name) == pytest.approx(began, rel=1e-5), f"{group}: {name}"


def test_no_constant_is_fitted_twice() -> None:
    names = [free.name for group in ORDER for free in FREE[group]]
    assert len(set(names)) == len(names)
