"""The card of an array: read strictly, kept with the array, silent where nothing is said; and the atmosphere."""

import dataclasses
import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from showerstack.runtime.errors import InputError
from showerstack.showers.array import KASCADE, DetectorArray, lattice, square_clusters
from showerstack.showers.atmosphere import air_density, altitude_of, depth_at
from showerstack.showers.card import NO_CARD, ArrayCard, altitude_remarks, read_card
from showerstack.showers.particles import DetectorResponse
from showerstack.showers.response import PUBLISHED


def array(card=NO_CARD, pitch=125.0, side=9):
    x_m, y_m = lattice(side, pitch)
    area = np.full(x_m.shape, 2.0)
    return DetectorArray("own", pitch, x_m, y_m, area, 0 * area, square_clusters(side, 3), card)


def written(tmp_path, text):
    file = tmp_path / "array.toml"
    file.write_text(text, encoding="utf-8")
    return file


def test_kascade_has_its_own_card_and_is_described_as_before():
    assert KASCADE.depth_g_cm2 == 1023.0
    assert (KASCADE.core_limit_m, KASCADE.core_spread_m) == (150.0, 60.0)
    assert KASCADE.response == PUBLISHED
    assert KASCADE.without([0, 17], [30]).response == PUBLISHED
    assert KASCADE.without([0, 17], [30]).core_limit_m == 150.0
    assert "card" not in KASCADE.as_json()
    # The digest of versions without cards.
    assert KASCADE.digest == "5ae31dae482f86d026a1aea841e3573817c21762fd94214b9a65099760ac1892"


def test_limits_follow_extent_and_pitch_and_give_about_kascades():
    renamed = dataclasses.replace(KASCADE, x_m=KASCADE.x_m + 1e-9, card=NO_CARD)
    assert renamed.depth_g_cm2 is None
    assert renamed.core_limit_m == pytest.approx(150.0, abs=1.0)
    assert renamed.core_spread_m == pytest.approx(60.0, abs=0.1)
    wide = array()
    assert wide.core_limit_m > 1.5 * np.abs(wide.x_m).max()
    assert wide.core_spread_m == pytest.approx(562.5 / math.sqrt(3))


def test_card_survives_json_and_counts():
    card = ArrayCard(
        depth_g_cm2=690.0, unit="vem", response={"electron_deposit_mev": 240.0}, fit={"core_limit_m": 900.0}
    )
    described = json.loads(json.dumps(array(card).as_json()))
    again = DetectorArray.from_json(described)
    assert again == array(card) != array()
    assert again.card == card
    assert again.core_limit_m == 900.0
    assert not array(card).is_like(array())
    placed = replace(card, site={"latitude_deg": 29.3}, unit="mev")
    assert array(placed).is_like(array(card)), "where it stands changes no shower"
    assert "site" not in array(placed).difference(array())
    assert "card" not in array().as_json()


def test_everything_is_read(tmp_path):
    file = written(
        tmp_path,
        'name = "Mine"\nstations = 81\naltitude_m = 2835\nunit = "mip"\n[response]\nmuon_deposit_mev = 9.0\n'
        "[fit]\ncore_spread_m = 200\n[times]\nresolution_ns = 2.5\n",
    )
    name, card = read_card(file, 81)
    assert name == "Mine"
    assert card.depth_g_cm2 == pytest.approx(732.75, abs=0.01)
    assert (card.unit, card.response, card.times) == ("mip", {"muon_deposit_mev": 9.0}, {"resolution_ns": 2.5})
    assert read_card(written(tmp_path, "[times]\n"))[1].times == {"resolution_ns": 1.0}, "an empty table says enough"
    assert array(card).core_spread_m == 200.0
    assert array(card).response.core_spread_m == pytest.approx(200.0 / array(card).fit_unit_m)
    assert array(card).response.muon_deposit_mev == 9.0


def test_other_deposits_move_the_saturation_with_them_unless_it_is_said():
    tank = array(ArrayCard(response={"electron_deposit_mev": 240.0})).response
    assert tank.saturation_mev == pytest.approx(30_000 * 240 / 9.5)
    assert tank.muon_saturation_mev == PUBLISHED.muon_saturation_mev
    said = array(ArrayCard(response={"electron_deposit_mev": 240.0, "saturation_mev": 1e5})).response
    assert said.saturation_mev == 1e5


def test_threshold_takes_its_share_of_exponential_deposits():
    deposits = np.random.default_rng(5).exponential(9.5, 200_000)
    lost = array(ArrayCard(response={"threshold_mev": 4.0})).response.lost_share
    seen = deposits[deposits < 4.0].sum() / deposits.sum()
    error = deposits[deposits < 4.0].std() * math.sqrt((deposits < 4.0).sum()) / deposits.sum()
    assert abs(lost - seen) < 5 * error + 0.001


def test_muon_threshold_misses_the_muons_below_it():
    response = {"muon_threshold_mev": 6.0, "muon_dispersion": 1.25}
    deposits = np.random.default_rng(6).gamma(4.0, 8.4 / 4.0, 200_000)
    missed = float(np.mean(deposits < 6.0))
    own = array(ArrayCard(response=response))
    assert own.response.muon_miss == pytest.approx(missed, abs=5 * math.sqrt(missed / 200_000))
    assert DetectorResponse.of(own).muon_threshold_mev == 6.0
    assert array(ArrayCard(response=response | {"muon_miss": 0.5})).response.muon_miss == 0.5
    assert array(ArrayCard()).response.muon_miss == PUBLISHED.muon_miss


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dept_g_cm2 = 700", "unknown key dept_g_cm2: did you mean depth_g_cm2?"),
        ("[response]\nelectron_deposit = 9", r"\[response\]: unknown key electron_deposit: did you mean electron_dep"),
        ("[fit]\ncore_limit = 9", r"\[fit\]: unknown key core_limit: did you mean core_limit_m?"),
        ("[fits]\na = 1", "unknown key fits: did you mean fit?"),
        ("depth_g_cm2 = 7000", "depth_g_cm2 is 7000, expected a number from 300 to 1090"),
        ("altitude_m = 2800\ndepth_g_cm2 = 1030", "2800 m above sea level are 736 g/cm2 .* depth_g_cm2 is 1030"),
        ("altitude_m = '2800'", "altitude_m is '2800', expected a number"),
        ('unit = "gev"', "unit is 'gev', expected one of mev, mip, vem"),
        ("[response]\nelectron_deposit_mev = 0", "electron_deposit_mev is 0, expected a positive number"),
        ("[response]\nelectron_deposit_mev = true", "is True, expected a number"),
        ("response = 3", "is not a table"),
        ("stations = 12", "card of an array of 12 stations, but 81 are listed"),
        ("name = 3", "name is 3, expected a text"),
        ("depth_g_cm2 = ", "is not TOML"),
    ],
)
def test_what_cannot_be_is_one_line(tmp_path, text, message):
    with pytest.raises(InputError, match=message) as told:
        read_card(written(tmp_path, text), 81)
    assert str(tmp_path) in str(told.value)
    assert "\n" not in str(told.value)


def test_us_standard_atmosphere_has_its_published_values():
    # U.S. Standard Atmosphere 1976: pressure over g, and density, at 0, 3, 5, 10 and 20 km.
    altitude = np.array([0.0, 3000.0, 5000.0, 10_000.0, 20_000.0])
    pressure_hpa = np.array([1013.25, 701.08, 540.19, 264.36, 54.748])
    density = np.array([1.2250, 0.90912, 0.73612, 0.41271, 0.08803])
    assert np.allclose(depth_at(altitude), pressure_hpa / 0.980665, rtol=0.03)
    assert np.allclose(air_density(depth_at(altitude)), density, rtol=0.06)


def test_depth_and_altitude_are_each_others_inverse():
    altitude = np.array([-350.0, 0.0, 110.0, 3999.0, 4001.0, 9000.0, 30_000.0, 70_000.0, 105_000.0])
    assert np.allclose(altitude_of(depth_at(altitude)), altitude, rtol=1e-6, atol=0.05)
    assert depth_at(110.0) == pytest.approx(KASCADE.depth_g_cm2, abs=0.5)
    assert depth_at(120_000.0) == 0.0
    h = np.array([500.0, 6000.0, 20_000.0])
    slope = (depth_at(h - 0.5) - depth_at(h + 0.5)) * 10.0  # g/cm2 a metre to kg/m3
    assert np.allclose(air_density(depth_at(h)), slope, rtol=1e-6)


@pytest.mark.parametrize(
    ("altitude", "said"), [(2.8, "is it in km? Then give 2800"), (8000, "in feet? Then give 2438")]
)
def test_altitudes_in_km_and_feet_are_told(tmp_path: Path, altitude: float, said: str) -> None:
    file = tmp_path / "array.toml"
    file.write_text(f"altitude_m = {altitude}\n")
    (line,) = altitude_remarks(file)
    assert said in line
    for sound in ("altitude_m = 110", "altitude_m = 0", "altitude_m = 5200", "depth_g_cm2 = 700"):
        file.write_text(sound)
        assert altitude_remarks(file) == []
    file.write_text("altitude_m = 9843")
    with pytest.raises(InputError, match=r"expected a number from .*; is it in feet\?"):
        read_card(file)


@pytest.mark.parametrize(
    "text",
    ["altitude_m = 1" + 5000 * "0", "altitude_m = 0x" + 6000 * "f", "stations = 0x" + 6000 * "f", "altitude_m = nan",
     "[fit]\ncore_limit_m = 0x" + 6000 * "f", "x = " + 3000 * "[" + 3000 * "]"],
    ids=["decimal", "hexadecimal", "stations", "nan", "of a table", "nested"],
)  # fmt: skip
def test_numbers_that_python_does_not_write_end_in_a_line(tmp_path: Path, text: str) -> None:
    file = tmp_path / "array.toml"
    file.write_text(text)
    with pytest.raises(InputError) as refused:
        read_card(file, 16)
    assert len(str(refused.value)) < 500
