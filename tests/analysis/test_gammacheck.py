"""Why gammas look like hadrons and hadrons like gammas: toys of known shares, and worlds with one mechanism each."""

from __future__ import annotations

import json
import shutil
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from showerstack.analysis.photons.mechanisms import (
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
from showerstack.analysis.photons.origin import TrueShowers, scores
from showerstack.runtime.errors import InputError
from showerstack.showers.archives.convert import convert
from showerstack.showers.archives.raw import TRUE_COLUMNS, archive_path
from showerstack.showers.protocols import MODES
from showerstack.showers.schema import GAMMA, SOURCE_FILE
from showerstack.showers.simulation import simulate
from showerstack.showers.simulation.raw import open_archive, simulate_raw
from showerstack.showers.simulation.settings import Settings, load_settings
from tests.program import call

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
                                                                  (250, 450, BOTH)])  # fmt: skip
def test_the_share_of_label_noise_comes_back(n_noise: int, n_photonuclear: int, answer: str) -> None:
    rng = np.random.default_rng(3)
    results = []
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
        true = n_noise / result.n_rich
        results.append((result.noise.low <= true <= result.noise.high, result.answer, result.noise_by_energy))
    assert np.mean([inside for inside, *_ in results]) > 0.8
    assert np.mean([one == answer for _, one, _ in results]) > 0.8, [one for _, one, _ in results]
    by_energy = np.array([values for *_, values in results if values is not None])
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
    result, surviving = surviving_hadrons(showers, showers.lg_nmu - 4.5)
    assert result.n == n
    assert surviving.sum() == n
    assert result.answer == answer
    assert result.poorest is not None
    assert result.poorest.low - 0.01 <= poor.mean() <= result.poorest.high + 0.01
    assert result.survival == pytest.approx(n / 20_060)
    deficit = np.where(poor, -1.2, 0.0).mean()
    assert result.muon_deficit[0] == pytest.approx(deficit, abs=0.1)
    assert result.hadron_deficit == pytest.approx(poor.mean(), abs=0.05), "these have no hadrons at the ground"
    weighted, _ = surviving_hadrons(
        _with_weights(showers, np.where(showers.gamma | (showers.score < 3.5), 1.0, 1e-3)), showers.lg_nmu - 4.5
    )
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


TAIL_OF_GAMMAS = {
    "proton_tail": 1.0, "electron_loss_min": -0.2, "hadronic_front": 2.0, "photon_age_offset": -0.35,
    "photon_lg_ne_offset": 0.0, "photon_lg_ne_inclination": 1.2, "photon_muon_spread": 0.3, "muon_scale": 4.0,
}  # fmt: skip
WORLDS = {
    LABEL_NOISE: world({"contamination": 0.005}, {}, {}),
    PHOTONUCLEAR_NAME: world({}, {"photonuclear_scale": 20.0}, {}),
    TAIL: world({}, TAIL_OF_GAMMAS, {"punch_content": 1.0}),
    DETECTOR: world({}, {}, {"muon_stray": 0.4, "punch_photon": 0.35}),
}
"""With one mechanism each, strong enough for few showers."""


@pytest.mark.parametrize("mechanism", list(WORLDS))
def test_it_names_the_mechanism_of_a_world_that_has_one(mechanism: str, tmp_path: Path) -> None:
    settings = WORLDS[mechanism]
    simulate(GAMMA, tmp_path, n_train=8_000, n_test=1, seed=3, train_cuts="test", settings=settings, workers=1)
    check = check_gammas(tmp_path / "gamma_train")
    answers = check.gammas.answer, check.hadrons.answer
    wanted = {
        LABEL_NOISE: (LABEL_NOISE, FEW), PHOTONUCLEAR_NAME: (PHOTONUCLEAR_NAME, FEW), TAIL: (FEW, TAIL),
        DETECTOR: (DETECTOR, DETECTOR),
    }  # fmt: skip
    assert answers == wanted[mechanism], verdict(check)
    assert [one.model for one in check.models] == ["epos", "qgs", "sibyll"]


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Archives of the three gamma modes with label noise, hadrons at the ground written into the first."""
    folder = tmp_path_factory.mktemp("raw")
    simulate_raw(GAMMA, folder, 8_000, world="default", workers=1)
    for mode in MODES["v2", GAMMA.name]:
        file = archive_path(folder, mode, "true_features")
        with np.load(file) as archive:
            truth = archive["true_features"].copy()
        hadrons = truth[:, TRUE_COLUMNS.index("Nmu")] - 2.0
        truth[:, TRUE_COLUMNS.index("Nhadron")] = np.where(hadrons < 0.5, -np.inf, hadrons)
        _rewrite(file, truth)
    return folder


def _rewrite(file: Path, truth: np.ndarray) -> None:
    """Write true features anew, what the simulation says of itself kept."""
    with zipfile.ZipFile(file) as archive:
        source = json.loads(archive.read(SOURCE_FILE))
    with open_archive(file, "true_features", truth.shape, source) as stream:
        stream.write(np.ascontiguousarray(truth, dtype="<f4").tobytes())


def test_raw_archives_and_what_is_converted_from_them_say_the_same(raw: Path, tmp_path: Path) -> None:
    direct = check_gammas(raw)
    convert(raw, tmp_path, task=GAMMA, protocol="v2")
    converted = check_gammas(tmp_path)
    truth = pl.read_parquet(tmp_path / "gamma_train" / "truth.parquet")
    hadrons = truth["lg_nhadron"].to_numpy()
    assert np.isneginf(hadrons).any(), "no hadron at the ground is not the same as unknown"
    assert not np.isnan(hadrons).any()
    np.testing.assert_allclose(hadrons[hadrons > 0], truth["lg_nmu"].to_numpy()[hadrons > 0] - 2.0, atol=1e-3)
    assert direct.gammas.hadron_rank is not None
    assert direct.mislabelled == 0
    assert (direct.n_gamma, direct.n_hadron) == pytest.approx((converted.n_gamma, converted.n_hadron), rel=0.03)
    assert direct.gammas.answer == converted.gammas.answer
    assert direct.gammas.n_rich == pytest.approx(converted.gammas.n_rich, abs=2)
    assert [one.model for one in direct.models] == sorted(MODES["v2", GAMMA.name])


def test_the_command_writes_page_and_numbers(raw: Path, tmp_path: Path) -> None:
    out = tmp_path / "check.html"
    shown = " ".join(call("cli.py", "gammacheck", raw, "--out", out).stdout.split())
    assert "look like hadrons" in shown
    page = out.read_text(encoding="utf-8")
    assert all(part in page for part in ("Gammas that look like hadrons", "The tail by hadronic model", "<svg"))
    content = json.loads(out.with_suffix(".json").read_text(encoding="utf-8"))
    assert content["verdict"] in shown
    assert content["gammas"] + content["hadrons"] < content["showers"]


def test_what_cannot_be_checked_is_refused_in_one_line(raw: Path, tiny_gamma: Path, tmp_path: Path) -> None:
    some = tmp_path / "raw"
    some.mkdir()
    mode = MODES["v2", GAMMA.name][0]
    for kind in ("features", "matrices"):
        shutil.copy(archive_path(raw, mode, kind), some)
    with pytest.raises(InputError, match="true_features\\.npz is missing"):
        check_gammas(some)
    without = tmp_path / "set"
    shutil.copytree(tiny_gamma / "gamma_test", without, ignore=shutil.ignore_patterns("truth.parquet", "*.json"))
    with pytest.raises(InputError, match="has no truth"):
        check_gammas(without)
    pl.DataFrame({"lg_energy": np.zeros(1000), "lg_ne": np.zeros(1000)}).write_parquet(without / "truth.parquet")
    with pytest.raises(InputError, match="no column lg_nmu"):
        check_gammas(without)
    with pytest.raises(InputError, match=r"gammas and .* hadrons with known truth pass the cuts, 100 of each"):
        check_gammas(tiny_gamma / "gamma_test")
    with pytest.raises(InputError, match="neither a dataset folder nor a gamma mode"):
        check_gammas(tmp_path)
    with pytest.raises(InputError, match="is no folder"):
        check_gammas(tmp_path / "nowhere")
    damaged = tmp_path / "damaged"
    shutil.copytree(without, damaged)
    (damaged / "truth.parquet").write_bytes(b"no table")
    with pytest.raises(InputError, match="cannot be read as Parquet"):
        check_gammas(damaged)
