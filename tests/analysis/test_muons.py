"""The muon scale: protons are 0, iron is 1, a mixture lies where its composition puts it, within its error."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from showerstack.analysis.spectra.muons import muon_scales
from showerstack.analysis.spectra.response import MassGroups, Simulated, SpectrumEvents
from showerstack.showers.schema import COMPOSITION
from tests.analysis.skies import simulated

EDGES = np.array([15.2, 15.6, 16.2])
EVENT = ("log_proba", "predicted", "lg_energy", "lg_ne", "lg_nmu", "zenith_deg")


@pytest.fixture(scope="module")
def showers() -> Simulated:
    return simulated(60_000, 5)[0]


def measured(showers: Simulated, rows: np.ndarray) -> SpectrumEvents:
    return SpectrumEvents(**{name: getattr(showers, name)[rows] for name in EVENT})


def test_protons_are_0_and_iron_is_1(showers: Simulated) -> None:
    for label, z in ((0, 0.0), (4, 1.0)):
        rows = np.flatnonzero(showers.labels == label)
        table = muon_scales(measured(showers, rows), showers, np.ones(len(showers)), EDGES)
        assert table is not None
        assert table["z"].filter(table["model"] == -1).to_list() == pytest.approx([z, z], abs=1e-12)
        assert set(table["model"]) == {-1, 0, 1}


def test_a_mixture_lies_where_its_composition_puts_it(showers: Simulated) -> None:
    rng = np.random.default_rng(6)
    weights = np.array([0.4, 0.3, 0.1, 0.1, 0.1])[showers.labels]
    first, rest = np.arange(len(showers)) % 2 == 0, np.arange(len(showers)) % 2 == 1
    pulls = []
    for _ in range(100):
        rows = rng.choice(np.flatnonzero(first), 1500, p=weights[first] / weights[first].sum())
        table = muon_scales(measured(showers, rows), showers.take(rest), weights[rest], EDGES)
        assert table is not None
        pulls.append(((table["z"] - table["z_of_composition"]) / table["z_error_statistical"]).to_numpy()[[0, 3]])
    # The simulation is drawn once: its part of the errors is common to all mixtures.
    assert np.abs(np.mean(pulls, axis=0)).max() < 1.5
    assert 0.65 < np.std(pulls, axis=0).mean() < 1.15


def test_showers_that_are_used_often_count_once(showers: Simulated) -> None:
    few = showers.take(np.arange(3000))
    copies = replace(few.take(np.repeat(np.arange(3000), 10)), group=np.repeat(np.arange(3000), 10))
    data = measured(showers, np.arange(3000, len(showers)))
    once, often, alone = (
        muon_scales(data, one, np.ones(len(one)), EDGES) for one in (few, copies, replace(copies, group=None))
    )
    assert once is not None
    assert often is not None
    assert alone is not None
    np.testing.assert_allclose(often["z_error_statistical"], once["z_error_statistical"])
    assert (alone["z_error_statistical"] < 0.7 * once["z_error_statistical"]).all()


def test_more_muons_than_the_model_has_raise_the_scale(showers: Simulated) -> None:
    weights, data = np.ones(len(showers)), measured(showers, np.arange(0, len(showers), 3))
    plain = muon_scales(data, showers, weights, EDGES)
    more = muon_scales(replace(data, lg_nmu=data.lg_nmu + 0.02), showers, weights, EDGES)
    assert plain is not None
    assert more is not None
    apart = plain["mean_ln_nmu_iron"] - plain["mean_ln_nmu_proton"]
    gain = (more["z"] - plain["z"]).to_numpy()
    np.testing.assert_allclose(gain, 0.02 * np.log(10.0) / apart.to_numpy())


def test_without_protons_or_events_there_is_no_scale(showers: Simulated) -> None:
    others = replace(showers, groups=MassGroups.of(COMPOSITION.with_classes(("helium", "carbon", "iron"))))
    data, weights = measured(showers, np.arange(1000)), np.ones(len(showers))
    assert muon_scales(data, others, weights, EDGES) is None
    assert muon_scales(data.take(np.arange(10)), showers, weights, EDGES) is None
