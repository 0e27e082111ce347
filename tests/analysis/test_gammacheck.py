"""Why gammas look like hadrons and hadrons like gammas: toys of known shares, and worlds with one mechanism each."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

from analysis.photons.mechanisms import (
    BOTH,
    DETECTOR,
    FEW,
    LABEL_NOISE,
    PHOTONUCLEAR_NAME,
    TAIL,
    check_gammas,
    hadron_like_gammas,
    model_tails,
    surviving_hadrons,
    verdict,
)
from analysis.photons.origin import TrueShowers, scores
from commands.app import app
from runtime.errors import InputError
from showers.archives.convert import convert
from showers.archives.raw import TRUE_COLUMNS, archive_path
from showers.protocols import MODES
from showers.schema import GAMMA
from showers.simulation import simulate
from showers.simulation.raw import simulate_raw
from showers.simulation.settings import Settings, load_settings

MUONS = 0.9
"""Slope of lg Nmu in lg E of the toys."""


def toy(rng: np.random.Generator, **kinds: tuple[int, Any, float]) -> TrueShowers:
    """Return showers: per kind number, lg of the muon content (n,), score; gammas are those whose name ends in _g."""
    parts = []
    for name, (n, content, score) in kinds.items():
        gamma = name.endswith("_g")
        energy = rng.uniform(14.5, 16.5, n) + (0.0 if "hadron" in name else 0.3)
        secant = rng.uniform(1.0, 1.15, n)
        lg_nmu = 4.0 + MUONS * (energy - 15.0) - 0.3 * (secant - 1) + content
        columns = {
            "gamma": np.full(n, gamma), "weight": np.ones(n), "model": np.full(n, "qgs"), "lg_energy": energy,
            "secant": secant, "lg_ne": energy - 10.0 + rng.normal(0, 0.1, n), "lg_nmu": lg_nmu,
            "lg_nhadron": np.where(content < -1.0, -np.inf, lg_nmu - 2.0), "reconstructed_lg_nmu": lg_nmu,
            "score": score + rng.normal(0, 0.1, n),
        }  # fmt: skip
        parts.append(columns)
    joined = {name: np.concatenate([one[name] for one in parts]) for name in parts[0]}
    return TrueShowers(group=np.arange(len(joined["gamma"])), **joined)


def photonuclear(rng: np.random.Generator, n: int) -> np.ndarray:
    """Return lg muon contents .87 f^.85 of energy shares f with P(> f) = c1 + c (1/f - 1), f > .1."""
    depth = rng.uniform(0.0, 0.0030 + 0.0018 * 9.0, n)
    share = np.where(depth < 0.0030, 1.0, 1.0 / (1.0 + (depth - 0.0030) / 0.0018))
    return np.asarray(np.log10(0.87 * share**0.85) + rng.normal(0, 0.06, n))


@pytest.mark.parametrize(("n_noise", "n_photonuclear", "answer"), [(400, 0, LABEL_NOISE), (0, 900, PHOTONUCLEAR_NAME),
                                                                  (150, 450, BOTH)])  # fmt: skip
def test_the_share_of_label_noise_comes_back(n_noise: int, n_photonuclear: int, answer: str) -> None:
    rng = np.random.default_rng(3)
    found = []
    for _ in range(20):
        showers = toy(
            rng,
            hadrons=(20_000, rng.normal(0, 0.1, 20_000), -3.0),
            photons_g=(5_000, rng.normal(-1.5, 0.2, 5_000), 3.0),
            noisy_hadrons_g=(n_noise, rng.normal(0, 0.1, n_noise), -3.0),
            nuclear_g=(n_photonuclear, photonuclear(rng, n_photonuclear), -3.0),
        )
        content = showers.lg_nmu - 4.0 - MUONS * (showers.lg_energy - 15.0) + 0.3 * (showers.secant - 1)
        result = hadron_like_gammas(showers, content)
        assert result.noise is not None
        n_full = n_noise + np.count_nonzero(10.0 ** content[-n_photonuclear:] > 0.6) if n_photonuclear else n_noise
        found.append((result.noise.low <= n_noise / n_full <= result.noise.high, result.answer, result.noise_by_energy))
    assert np.mean([inside for inside, *_ in found]) > 0.8
    assert np.mean([one == answer for _, one, _ in found]) > 0.8, [one for _, one, _ in found]
    by_energy = np.array([values for *_, values in found if values is not None])
    if answer != BOTH and len(by_energy):
        wanted = float(answer == LABEL_NOISE)
        assert abs(by_energy[:, 0].mean() - wanted) < 0.25, "energies say it too"


def test_gammas_without_a_hadrons_muons_are_the_detectors() -> None:
    rng = np.random.default_rng(4)
    kinds = {"hadrons": (5_000, rng.normal(0, 0.1, 5_000), -3.0), "photons_g": (900, rng.normal(-1.5, 0.2, 900), 3.0)}
    showers = toy(rng, **kinds, confused_g=(100, rng.normal(-1.5, 0.2, 100), -3.0))
    content = showers.lg_nmu - 4.0 - MUONS * (showers.lg_energy - 15.0)
    assert hadron_like_gammas(showers, content).answer == DETECTOR
    few = toy(rng, **kinds, confused_g=(5, rng.normal(-1.5, 0.2, 5), -3.0))
    assert hadron_like_gammas(few, few.lg_nmu).answer == FEW


@pytest.mark.parametrize(("share", "answer"), [(1.0, TAIL), (0.0, DETECTOR), (0.5, BOTH)])
def test_survivors_are_of_the_tail_or_ordinary(share: float, answer: str) -> None:
    rng = np.random.default_rng(5)
    n = 60
    poor = rng.random(n) < share
    showers = toy(
        rng,
        hadrons=(20_000, rng.normal(0, 0.1, 20_000), -3.0),
        surviving_hadrons=(n, np.where(poor, -1.2, 0.0) + rng.normal(0, 0.05, n), 4.0),
        photons_g=(1_000, rng.normal(-1.5, 0.2, 1_000), 3.0),
    )
    result, surviving = surviving_hadrons(showers)
    assert result.n == n
    assert surviving.sum() == n
    assert result.answer == answer
    assert result.poorest is not None
    assert result.poorest.low - 0.01 <= poor.mean() <= result.poorest.high + 0.01
    assert result.survival == pytest.approx(n / 20_060)
    deficit = np.where(poor, -1.2, 0.0).mean()
    assert result.muon_deficit[0] == pytest.approx(deficit, abs=0.1)
    assert result.hadron_deficit == pytest.approx(poor.mean(), abs=0.05), "these have no hadrons at the ground"
    weighted, _ = surviving_hadrons(_with_weights(showers, np.where(showers.score > 3.5, 1e-3, 1.0)))
    assert weighted.survival == pytest.approx(60e-3 / (20_000 + 60e-3), rel=1e-3)


def _with_weights(showers: TrueShowers, weight: np.ndarray) -> TrueShowers:
    return TrueShowers(**{**vars(showers), "weight": weight})


def test_tails_of_models_by_hand() -> None:
    rng = np.random.default_rng(6)
    tail = -np.log10(2.0) - rng.exponential(0.09, 400)
    kinds: dict[str, Any] = {
        "hadrons": (19_800, rng.normal(0, 0.05, 19_800), -3.0), "poor_hadrons": (200, tail[:200], -3.0),
        "photons_g": (500, rng.normal(-1.5, 0.2, 500), 3.0),
    }  # fmt: skip
    one = toy(rng, **kinds)
    kinds["poor_hadrons"] = (400, tail, -3.0)
    other = toy(rng, **kinds)
    joined = {name: np.concatenate([vars(one)[name], vars(other)[name]]) for name in vars(one)}
    joined["model"] = np.repeat(["epos", "qgs"], [len(one), len(other)])
    joined["group"] = np.arange(len(joined["model"]))
    tails = model_tails(TrueShowers(**joined), 0.75)
    assert [t.model for t in tails] == ["epos", "qgs"]
    for t, share in zip(tails, (200 / 20_000, 400 / 20_200), strict=True):
        assert t.below_half[0] == pytest.approx(share, abs=3 * t.below_half[1])
        assert t.slope[0] == pytest.approx(0.09, abs=4 * t.slope[1])
    assert tails[1].below_half[0] > tails[0].below_half[0] + 3 * tails[0].below_half[1]


def test_scores_are_of_trees_that_did_not_learn_the_shower() -> None:
    rng = np.random.default_rng(7)
    x = rng.normal(0, 1, (600, 4)).astype(np.float32)
    x = np.repeat(x, 2, axis=0)  # every shower twice, with the same random label
    gamma = np.repeat(rng.random(600) < 0.5, 2)
    result = scores(x, gamma, np.ones(1200), np.repeat(np.arange(600), 2), seed=1)
    assert abs(np.mean((result > 0) == gamma) - 0.5) < 0.07, "labels are random: who knows them has learned them"


def world(spectrum: dict[str, Any], cascade: dict[str, Any], detector: dict[str, Any]) -> Settings:
    """Return the default world with neither label noise nor photonuclear interactions, changed."""
    base = load_settings("default")
    parts = {
        "spectrum": base.spectrum.model_copy(update={"contamination": 0.0, **spectrum}),
        "cascade": base.cascade.model_copy(update={"photonuclear_scale": 0.0, **cascade}),
        "detector": base.detector.model_copy(update=detector),
    }
    return base.model_copy(update=parts)
