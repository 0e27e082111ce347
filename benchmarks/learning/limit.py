r"""How far the log-loss can fall in one fixed world: networks on features, on stations as well, on exact estimates.

    OMP_NUM_THREADS=1 python -m benchmarks.learning.limit --work limit --showers 3000000
    OMP_NUM_THREADS=1 python -m benchmarks.learning.limit --work limit --showers 0 --learners catboost,published.lenet

All networks start at random and see the same showers once, in the same order: nothing is repeated, so nothing is
learned by heart. Composition, default world, test's cuts, float32 scalars without the reconstructed age.

* ``features``: the body of ``pretrained`` (four residual blocks) on its 93 features.
* ``features and stations``: the same body, and beside it all hit stations as tokens of a set transformer.
* ``exact likelihood``: a smaller body on what an efficient estimator with the world's own constants would say. Sizes,
  age and core are the truth, smeared by the inverse Fisher matrix of the single readings' compound-Poisson likelihoods.
* ``truth``: the same without smearing, to see what the array loses.
* ``mlp`` and ``pretrained``, or other learners, beside them, with the first few of these showers, as a run trains
  them: how far from the limit they stand. ``--showers 0`` trains these alone.

Fisher information of one detector (:func:`information`): counts of two kinds of particles are Poisson, deposits sums
of Gamma numbers; with f the probability of a reading, I_ij = sum over readings of (df/dm_i) (df/dm_j) / f for the mean
counts m. It is a yardstick, not a bound. Estimates with a prior can spread less. Muons that cross both detectors of a
station do not correct the e/gamma reading (lg Ne and age up to 7 % too wide) and count twice for lg Nmu. Clumps of the
electron density count as independent from station to station, and their size, which tells the mass, is not given.
Deposits are those of vertical showers.

Killed and started again, it continues. Printed are log-losses of test showers and paired differences, ± standard
errors, and how the errors of the fits compare with those of the exact likelihood.
"""

from __future__ import annotations

import argparse
import os
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.ndimage import map_coordinates
from scipy.stats import gamma
from torch import nn
from torch.nn import functional

from benchmarks.fits.oracle import informed
from benchmarks.learning.pretraining import VALID_SHARE, only
from benchmarks.shared.drawn import COLUMNS, CORE, GROUPS
from showerstack.features.catalogue import feature_set
from showerstack.features.compute import compute_events
from showerstack.features.device import namespace
from showerstack.features.groups import FittedEvents, lateral
from showerstack.features.lateral.events import make_events
from showerstack.models.base.inputs import LOGARITHM, InputTransform
from showerstack.models.base.learner import Batch
from showerstack.models.networks.layers import Attention, mlp
from showerstack.models.networks.loop import learning_rate
from showerstack.models.networks.physics import ResidualBlock, ResidualMLP
from showerstack.models.networks.stations import N_TOKEN, StationTokens, pack
from showerstack.models.networks.step import (
    Checkpoint,
    Output,
    TrainingSettings,
    optimiser_of,
    read_checkpoint,
    write_checkpoint,
)
from showerstack.models.pretraining.stream import HIGHEST_ZENITH_DEG, LOWEST_LG_ENERGY
from showerstack.models.pretraining.train import draw_ahead
from showerstack.models.pretraining.weights import SHIPPED_SHA256
from showerstack.models.registry import create, spec
from showerstack.runtime.files import write_npz
from showerstack.scoring.metrics.losses import event_losses
from showerstack.scoring.metrics.paired import paired_log_loss
from showerstack.showers.array import KASCADE
from showerstack.showers.response import PUBLISHED
from showerstack.showers.schema import COMPOSITION, SCALAR_NAMES
from showerstack.showers.simulation import load_settings
from showerstack.showers.simulation.blocks import BlockJob, SimulatedEvents, simulate_block
from showerstack.showers.simulation.cascade import Showers, mean_muon_age
from showerstack.showers.simulation.deposits import CLUMP_FLAT_M, stations_of
from showerstack.showers.simulation.detector import CHUNK, clump_sigma, expected
from showerstack.showers.simulation.settings import Settings

FEATURES, STATIONS, EXACT, TRUTH = SYSTEMS = ("features", "features and stations", "exact likelihood", "truth")
SEED = 34
BLOCKS_PER_PORTION = 12
SHOWERS_PER_PORTION = 8_500
"""At least."""
PORTIONS_PER_ROUND = 6
"""Showers of a round are shuffled together; a killed run loses one round at most."""
TEST_SEED = 35
RATE_STEPS = 1000
FITTED = ("fit_lg_ne", "fit_age", "fit_lg_nmu", *CORE)
SETTINGS = TrainingSettings(batch_size=256, learning_rate=1.5e-3, weight_decay=0.02, warmup=0.02, ema=0.9995)

STEPS = {"lg_ne": 0.01, "age": 0.01, "lg_nmu": 0.01, "core_x_m": 0.5, "core_y_m": 0.5}
"""What is estimated, with the steps of the numerical derivatives. The muon age follows lg Nmu (what else it does in the
default world has an rms of .01), the share of punch-through is known."""
WIDEST = (2.0, 0.5, 2.0, 50.0, 50.0)
"""Errors of an independent measurement that is added, so that no parameter is free: much wider than showers differ."""

SMALLEST, LARGEST, KNOTS = 1e-4, 40.0, 40
"""Mean counts of the table of information; beyond the largest, readings are normal."""
BIN_MEV, BINS = 0.5, 4096
LEAST = 1e-12
"""Readings less probable than this carry no information."""


@dataclass(frozen=True)
class Kind:
    """Particles of one kind in one detector."""

    mev: float
    """Mean deposit."""
    shape: float
    """Gamma shape of one particle's deposit; 0: always the mean."""

    def spectrum(self) -> np.ndarray:
        """Return the Fourier transform of the deposit's probabilities in bins, (BINS // 2 + 1,) complex."""
        edges = (np.arange(BINS + 1) - 0.5) * BIN_MEV
        if not self.shape:
            return np.fft.rfft(np.histogram([self.mev], edges)[0].astype(float))
        return np.fft.rfft(np.diff(gamma.cdf(np.maximum(edges, 0.0), self.shape, scale=self.mev / self.shape)))


def information(kinds: tuple[Kind, Kind], stray: Kind, strays: float, threshold_mev: float) -> np.ndarray:
    """Return the Fisher information of a reading on the mean counts of two kinds of particles.

    Parameters
    ----------
    kinds, stray, strays
        Deposits of the kinds and of stray particles, and the strays' mean count.
    threshold_mev
        Smaller deposits read 0.

    Returns
    -------
    numpy.ndarray
        (3, KNOTS, KNOTS): I_11, I_12, I_22 at mean counts that rise geometrically from SMALLEST to LARGEST.
    """
    means = np.geomspace(SMALLEST, LARGEST, KNOTS)
    first, second, background = (kind.spectrum() - 1.0 for kind in (*kinds, stray))
    lowest = int(np.ceil(threshold_mev / BIN_MEV))
    result = np.empty((3, KNOTS, KNOTS))
    for i, m_1 in enumerate(means):
        whole = np.exp(m_1 * first + means[:, None] * second + strays * background)
        f, d_1, d_2 = (np.fft.irfft(x, BINS) for x in (whole, whole * first, whole * second))
        f, d_1, d_2 = (np.column_stack([x[:, :lowest].sum(axis=1), x[:, lowest:]]) for x in (f, d_1, d_2))
        weight = np.where(f > LEAST, 1.0 / np.maximum(f, LEAST), 0.0)
        for k, (one, other) in enumerate(((d_1, d_1), (d_1, d_2), (d_2, d_2))):
            result[k, i] = (one * other * weight).sum(axis=1)
    return result


def normal_information(kinds: tuple[Kind, Kind], m_1: np.ndarray, m_2: np.ndarray) -> np.ndarray:
    """Return I_11, I_12, I_22 (3, ...) for many particles, where the reading is normal and its mean tells all."""
    one, two = kinds
    variance = m_1 * one.mev**2 * (1.0 + 1.0 / one.shape) + m_2 * two.mev**2 * (1.0 + 1.0 / two.shape)
    return np.stack([one.mev**2 / variance, one.mev * two.mev / variance, two.mev**2 / variance])


@dataclass(frozen=True)
class DetectorInformation:
    """Information of one kind of detector, tabulated."""

    kinds: tuple[Kind, Kind]
    table: np.ndarray
    cap_mev: float

    def __call__(self, m_1: np.ndarray, m_2: np.ndarray, rms: np.ndarray | None = None) -> np.ndarray:
        """Return I_11, I_12, I_22, (3, n, S), at mean counts (n, S); zero where the detector saturates.

        With ``rms``, (n, S), the first mean has a further relative error, independent from station to station.
        """
        place = [
            np.clip(np.log(np.maximum(m, SMALLEST) / SMALLEST) / np.log(LARGEST / SMALLEST) * (KNOTS - 1), 0, KNOTS - 1)
            for m in (m_1, m_2)
        ]
        few = np.stack([map_coordinates(table, place, order=1) for table in self.table])
        many = normal_information(self.kinds, np.maximum(m_1, SMALLEST), np.maximum(m_2, SMALLEST))
        result = np.where(np.maximum(m_1, m_2) > LARGEST, many, few)
        if rms is not None:
            further = (rms * m_1) ** 2
            less = 1.0 + result[0] * further
            result = np.stack([result[0] / less, result[1] / less, result[2] - result[1] ** 2 * further / less])
        return np.where(m_1 * self.kinds[0].mev + m_2 * self.kinds[1].mev > self.cap_mev, 0.0, result)


@cache
def detectors(settings: Settings) -> tuple[DetectorInformation, DetectorInformation]:
    """Return the e/gamma detector (electrons, muons) and the muon detector (muons, punch-through), vertical showers."""
    d = settings.detector
    above = (
        Kind(d.electron_mev * (1.0 + d.photon_share), d.electron_shape),
        Kind(d.electron_mev, d.muon_in_electron_shape),
    )
    below = (Kind(d.muon_mev, d.muon_shape), Kind(d.punch_mev, 1.0))
    return (
        DetectorInformation(
            above,
            information(above, Kind(d.electron_mev, 0.0), d.electron_stray, d.electron_threshold_mev),
            d.electron_cap_mev,
        ),
        DetectorInformation(
            below, information(below, Kind(d.muon_mev, 0.0), d.muon_stray, d.muon_threshold_mev), d.muon_cap_mev
        ),
    )


def moved(showers: Showers, name: str, by: float) -> Showers:
    """Return the showers with one parameter changed; the muon age follows lg Nmu."""
    if name.startswith("core"):
        primaries = replace(showers.primaries, **{name: getattr(showers.primaries, name) + by})
        return replace(showers, primaries=primaries)
    changes = {name: getattr(showers, name) + by}
    if name == "lg_nmu":
        secant = 1.0 / np.cos(np.radians(showers.primaries.zenith_deg))
        before, after = (mean_muon_age(lg_nmu, secant) for lg_nmu in (showers.lg_nmu, changes[name]))
        changes["muon_age"] = showers.muon_age + after - before
    return replace(showers, **changes)


def counts(showers: Showers, rows: np.ndarray, settings: Settings) -> tuple[np.ndarray, np.ndarray]:
    """Return mean counts (4, n, S) float64, of electrons and muons above, muons and punch-through below.

    Beside them the deposit per electron, (n, S), in units of a single particle's.
    """
    here = stations_of(KASCADE)
    electrons, density, punch, per_electron = expected(showers, rows, settings)
    means = np.stack([electrons, density * here.electron_area_m2, density * here.muon_area_m2, punch])
    return means.astype(np.float64), per_electron


def covariance(showers: Showers, rows: np.ndarray, settings: Settings) -> np.ndarray:
    """Return the inverse Fisher matrix (n, 5, 5) of the parameters in :data:`STEPS`."""
    above, below = detectors(settings)
    at, per_electron = counts(showers, rows, settings)
    slopes = np.zeros((len(STEPS), *at.shape))
    for k, (name, step) in enumerate(STEPS.items()):
        for sign in (1.0, -1.0):
            there, deposit = counts(moved(showers, name, sign * step), rows, settings)
            there[0] *= deposit / per_electron  # a reading tells electrons by their deposit
            slopes[k] += sign / (2.0 * step) * there
    fisher = np.repeat(np.diag(np.array(WIDEST) ** -2.0)[None], len(rows), axis=0)
    clumps = clump_rms(showers, rows, settings)
    for detector, (i, j), rms in ((above, (0, 1), clumps), (below, (2, 3), None)):
        i_11, i_12, i_22 = detector(at[i], at[j], rms)
        weighted = (slopes[:, i] * i_11 + slopes[:, j] * i_12, slopes[:, i] * i_12 + slopes[:, j] * i_22)
        for slope, weight in zip((slopes[:, i], slopes[:, j]), weighted, strict=True):
            fisher += np.einsum("ans,bns->nab", slope, weight, optimize=True)
    return np.linalg.inv(fisher)


def clump_rms(showers: Showers, rows: np.ndarray, settings: Settings) -> np.ndarray:
    """Return the relative rms of the electron density beyond Poisson at the stations, (n, S)."""
    here, p = stations_of(KASCADE), showers.primaries
    distance = np.hypot(here.x_m - p.core_x_m[rows, None], here.y_m - p.core_y_m[rows, None])
    return clump_sigma(showers, settings)[rows, None] * np.minimum(1.0, distance / CLUMP_FLAT_M)


def truth_of(showers: Showers, rows: np.ndarray) -> np.ndarray:
    """Return the true parameters (n, 5), in the order of :data:`STEPS`."""
    p = showers.primaries
    columns = (showers.lg_ne, showers.age, showers.lg_nmu, p.core_x_m, p.core_y_m)
    return np.column_stack([column[rows] for column in columns])


@dataclass(frozen=True)
class Portion:
    """Showers as the networks read them."""

    labels: np.ndarray
    table: np.ndarray
    """(n, F) float32 features."""
    grids: np.ndarray
    """(n, rows, columns, 2) float16, MeV."""
    exact: np.ndarray
    """(n, 6) float32: smeared parameters and the cosine of the zenith."""
    truth: np.ndarray
    """(n, 6) float32: the same without smearing."""

    def __len__(self) -> int:
        return len(self.labels)

    @classmethod
    def joined(cls, portions: list[Portion]) -> Portion:
        """Return all showers of several portions."""
        return cls(*(np.concatenate([getattr(one, name) for one in portions]) for name in cls.__dataclass_fields__))

    def events(self) -> Batch:
        """Return what registered learners read; the scalars have neither azimuth nor age."""
        scalars = tuple(name for name in SCALAR_NAMES if name in COLUMNS)
        values = self.table[:, [COLUMNS.index(name) for name in scalars]]
        return replace(
            self.batch(FEATURES), labels=self.labels, grids=self.grids, scalars=values, scalar_columns=scalars
        )

    def batch(self, system: str) -> Batch:
        """Return what a system reads, as a table."""
        values = {FEATURES: self.table, STATIONS: self.table, EXACT: self.exact, TRUTH: self.truth}[system]
        columns = COLUMNS if values is self.table else tuple(f"x{k}" for k in range(values.shape[1]))
        return Batch(index=np.arange(len(self)), table=np.asfortranarray(values), columns=columns)


def blocks_of(seed: int, number: int) -> Iterator[tuple[SimulatedEvents, Settings]]:
    """Yield the blocks of portion ``number`` of a seed's showers, and their world."""
    settings = load_settings("default").changed(
        spectrum__lg_energy_min=LOWEST_LG_ENERGY[0], spectrum__hadron_zenith_max_deg=HIGHEST_ZENITH_DEG
    )
    job = BlockJob(COMPOSITION, "train", seed, "mix", "test", settings)
    for block in range(number * BLOCKS_PER_PORTION, (number + 1) * BLOCKS_PER_PORTION):
        yield simulate_block(job, block), settings


def draw(seed: int, number: int) -> Portion:
    """Return portion ``number`` of a seed's showers."""
    rng = np.random.default_rng([seed, number])
    return Portion.joined([_portion(events, settings, rng) for events, settings in blocks_of(seed, number)])


def smeared(events: SimulatedEvents, settings: Settings, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return true parameters (n, 5) and what an efficient estimator says of them.

    Its errors are not given away: they follow from the true parameters and would betray them.
    """
    truth = truth_of(events.showers, events.rows)
    parts = np.array_split(events.rows, -(-len(events) // CHUNK))
    spread = np.concatenate([covariance(events.showers, rows, settings) for rows in parts])
    return truth, truth + np.einsum("nij,nj->ni", np.linalg.cholesky(spread), rng.standard_normal(truth.shape))


def _portion(events: SimulatedEvents, settings: Settings, rng: np.random.Generator) -> Portion:
    grids = events.grids.astype(np.float16)
    result = compute_events(grids.astype(np.float32), events.scalars.astype(np.float32), None, GROUPS)
    truth, estimates = smeared(events, settings, rng)
    cosine = np.cos(np.radians(events.showers.primaries.zenith_deg[events.rows]))
    return Portion(
        events.labels.astype(np.int64),
        result.select(COLUMNS).to_numpy().astype(np.float32),
        grids,
        np.column_stack([estimates, cosine]).astype(np.float32),
        np.column_stack([truth, cosine]).astype(np.float32),
    )


class FeaturesAndStations(nn.Module):
    """The body of ``pretrained`` on features; seeds made from its output read the hit stations, and join it again."""

    def __init__(self, inputs: InputTransform, n_classes: int, width: int, blocks: int, hidden: int) -> None:
        super().__init__()
        self.n_seeds, self.small = 4, 48
        self.embed = nn.Linear(inputs.n_inputs, width)
        self.blocks = nn.Sequential(*(ResidualBlock(width, hidden, 0.0) for _ in range(blocks)))
        self.after = nn.Sequential(*(ResidualBlock(width, hidden, 0.0) for _ in range(2)))
        self.tokens = StationTokens(inputs, KASCADE)
        self.token = mlp((N_TOKEN, self.small, self.small))
        self.seeds = nn.Linear(width, self.n_seeds * self.small)
        self.gather = nn.ModuleList(Attention(self.small, 4) for _ in range(2))
        self.confer = nn.ModuleList(Attention(self.small, 4) for _ in range(2))
        self.join = nn.Sequential(nn.LayerNorm(self.n_seeds * self.small), nn.Linear(self.n_seeds * self.small, width))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, n_classes)

    def forward(self, grid: torch.Tensor, inputs: torch.Tensor) -> Output:
        """Return class logits."""
        shower = self.blocks(self.embed(inputs))
        tokens, present = pack(*self.tokens(grid, inputs))
        members = self.token(tokens)
        points = self.seeds(shower).unflatten(1, (self.n_seeds, self.small))
        for gather, confer in zip(self.gather, self.confer, strict=True):
            points = confer(gather(points, members, present), points, None)
        return Output(self.head(self.norm(self.after(shower + self.join(points.flatten(1))))))


def network_of(system: str, inputs: InputTransform) -> nn.Module:
    """Return a system's network before the first step."""
    n_classes = COMPOSITION.n_classes
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(zlib.crc32(system.encode()))
        if system == STATIONS:
            return FeaturesAndStations(inputs, n_classes, width=256, blocks=4, hidden=512)
        width = 256 if system == FEATURES else 128
        return ResidualMLP(inputs, n_classes, KASCADE, width, blocks=4, hidden=2 * width, dropout=0.0)


@dataclass
class StreamedTraining:
    """A system on its way."""

    system: str
    inputs: InputTransform
    state: Checkpoint
    rounds: int
    file: Path
    """Where the state is kept."""

    @classmethod
    def begun(cls, system: str, first: Portion, rounds: int, work: Path) -> StreamedTraining:
        """Return the training that the folder holds, or a new one with inputs scaled on the first showers."""
        batch = first.batch(system)
        inputs = InputTransform.fit(batch, batch.columns, tail=LOGARITHM)
        network = network_of(system, inputs)
        state = Checkpoint.start(network, optimiser_of(network, SETTINGS), f"{system}, {rounds} rounds, seed {SEED}")
        result = cls(system, inputs, state, rounds, work / f"{system.replace(' ', '_')}.safetensors")
        if result.file.exists():
            read_checkpoint(result.file, state)
        return result

    def tensors(self, showers: Portion) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return inputs (n, S) and the grids, where the system reads them, (n, rows, columns, 2)."""
        inputs = torch.from_numpy(self.inputs.apply(showers.batch(self.system)))
        return inputs, torch.from_numpy(showers.grids) if self.system == STATIONS else None

    def logits(self, network: nn.Module, inputs: torch.Tensor, grids: torch.Tensor | None, rows: Any) -> torch.Tensor:
        """Return class logits of some showers."""
        planes = None if grids is None else grids[rows].float().permute(0, 3, 1, 2)
        result: torch.Tensor = network(planes, inputs[rows]).logits
        return result

    def learn(self, showers: Portion) -> float:
        """Show every shower of a round once; return the mean log-loss on the way."""
        state = self.state
        inputs, grids = self.tensors(showers)
        labels = torch.from_numpy(showers.labels)
        order = np.random.default_rng([SEED, state.epoch]).permutation(len(showers))
        batches = np.array_split(order, max(1, len(order) // SETTINGS.batch_size))
        total = 0.0
        state.network.train()
        for k, rows in enumerate(batches):
            done = round(RATE_STEPS * (state.epoch + k / len(batches)))
            for group in state.optimiser.param_groups:
                group["lr"] = learning_rate(SETTINGS, done, RATE_STEPS * self.rounds) * group["factor"]
            picked = torch.from_numpy(rows)
            loss = functional.cross_entropy(self.logits(state.network, inputs, grids, picked), labels[picked])
            state.optimiser.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(state.network.parameters(), SETTINGS.clip_norm)
            state.optimiser.step()
            state.average(SETTINGS.ema)
            total += float(loss.detach())
        state.finish_epoch(total / len(batches))
        return total / len(batches)

    def log_proba(self, showers: Portion) -> np.ndarray:
        """Return log-posteriors (n, C) of the averaged weights."""
        network = self.state.averaged.eval()
        inputs, grids = self.tensors(showers)
        with torch.inference_mode():
            parts = [
                torch.log_softmax(self.logits(network, inputs, grids, slice(begin, begin + 256)), dim=1)
                for begin in range(0, len(showers), 256)
            ]
        return torch.cat(parts).double().numpy()


def streamed(systems: list[str], n: int, test: Portion, work: Path, workers: int) -> dict[tuple[str, int], np.ndarray]:
    """Return log-posteriors (n, C) of the test showers by networks that see ``n`` showers once, in whole rounds."""
    first = draw(SEED, 0)
    rounds = max(1, round(n / (len(first) * PORTIONS_PER_ROUND)))
    trainings = [StreamedTraining.begun(system, first, rounds, work) for system in systems]
    done = min(one.state.epoch for one in trainings)
    stream = draw_ahead(SEED, range(done * PORTIONS_PER_ROUND, rounds * PORTIONS_PER_ROUND), workers, draw)
    for number in range(done, rounds):
        showers = Portion.joined([next(stream)[0] for _ in range(PORTIONS_PER_ROUND)])
        losses = []
        for one in trainings:
            if one.state.epoch == number:
                losses.append(f"{one.system} {one.learn(showers):.4f}")
                write_checkpoint(one.file, one.state)
        print(f"round {number + 1} of {rounds}, {len(showers):,} showers: {', '.join(losses)}", flush=True)
    return {
        (one.system, int(round(one.state.step * SETTINGS.batch_size, -3))): one.log_proba(test) for one in trainings
    }


def with_few(names: list[str], sizes: list[int], test: Portion, work: Path) -> dict[tuple[str, int], np.ndarray]:
    """Return log-posteriors (n, C) of the test showers by learners that see the first showers alone, many times."""
    result = {}

    @cache
    def first(n: int) -> Batch:
        return Portion.joined([draw(SEED, k) for k in range(-(-n // SHOWERS_PER_PORTION))]).events()

    for name in names:
        entry = spec(name)
        assert entry.features is None or isinstance(entry.features, str)
        columns = () if entry.features is None else feature_set(entry.features, COLUMNS)
        for n in sizes:
            weights = f"-{SHIPPED_SHA256[:8]}" if name == "pretrained" else ""
            file = work / f"{name}{weights}-{n}-{len(test)}.npz"
            if not file.exists():
                started = time.process_time()
                parts = np.split(np.random.default_rng(n).permutation(n), [round(VALID_SHARE * n)])
                valid, train = (only(first(n).take(np.sort(part)), columns) for part in parts)
                learner = create(entry, COMPOSITION.classes).fit(train, valid, seed=SEED)
                asked = replace(only(test.events(), columns), labels=None)
                write_npz(file, log_p=learner.predict_log_proba(asked))
                print(f"{name} with {n:,}: {time.process_time() - started:.0f} s of processor time", flush=True)
            with np.load(file) as content:
                result[name, n] = content["log_p"]
    return result


def table(predictions: dict[tuple[str, int], np.ndarray], labels: np.ndarray) -> str:
    """Return the log-losses of (n, C) log-posteriors by system and number of showers.

    Each is compared with ``features``, or where that was not trained with ``pretrained`` on as many showers.
    """
    features = next((log_p for (system, _), log_p in predictions.items() if system == FEATURES), None)
    other = "pretrained with as many" if features is None else FEATURES
    lines = [f"| network on | showers seen | log-loss | against {other} |", "|---|---:|---:|---:|"]
    for (system, seen), log_p in predictions.items():
        reference = predictions.get(("pretrained", seen)) if features is None else features
        loss = event_losses(log_p, labels)
        against = ""
        if reference is not None and log_p is not reference:
            gap = paired_log_loss(labels, log_p, reference)
            against = f"{gap.difference:+.4f} ± {gap.standard_error:.4f}"
        error = loss.std() / len(loss) ** 0.5
        lines.append(f"| {system} | {seen:,} | {loss.mean():.4f} ± {error:.4f} | {against} |")
    return "\n".join(lines)


def with_more(predictions: dict[tuple[str, int], np.ndarray], labels: np.ndarray, names: list[str]) -> str:
    """Return the loss of ``pretrained`` minus that of other learners with as many showers or more, a line a pair."""
    lines = []
    for n, log_p in ((n, log_p) for (name, n), log_p in predictions.items() if name == "pretrained"):
        for (other, more), reference in predictions.items():
            if other in names and other != "pretrained" and more >= n:
                gap = paired_log_loss(labels, log_p, reference)
                words = f"{gap.difference:+.4f} ± {gap.standard_error:.4f}"
                lines.append(f"* pretrained with {n:,} minus {other} with {more:,}: {words}")
    return "\n".join(lines)


def errors_table() -> str:
    """Return errors of the fits, with the published and the world's constants, and of the exact likelihood.

    Half widths (68 %) about the median, of showers that passed the cuts.
    """
    deviations: list[list[np.ndarray]] = []
    rng = np.random.default_rng(TEST_SEED)
    for events, settings in blocks_of(TEST_SEED, 0):
        truth, estimates = smeared(events, settings, rng)
        readings = events.grids.astype(np.float16).astype(np.float32), events.scalars.astype(np.float32)
        row = [estimates - truth]
        for response in (PUBLISHED, informed(settings)):
            result = lateral.compute(FittedEvents(make_events(namespace("cpu"), *readings, response)))
            row.append(np.column_stack([result[name] for name in FITTED]) - truth)
        deviations.append(row)
    exact, published, known = (np.concatenate(column) for column in zip(*deviations, strict=True))
    lines = ["| quantity | fits | fits with the world's constants | exact likelihood |", "|---|---:|---:|---:|"]
    for k, name in enumerate(("lg Ne", "age", "lg Nmu", "core x, m", "core y, m")):
        gaps = (values[:, k] - np.nanmedian(values[:, k]) for values in (published, known, exact))
        lines.append(f"| {name} | {' | '.join(f'{np.nanquantile(np.abs(gap), 0.68):.4f}' for gap in gaps)} |")
    return "\n".join(lines)


def main() -> None:
    """Parse, train what is left, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path("bench/limit"), help="folder for showers and networks")
    parser.add_argument(
        "--showers", type=int, default=3_000_000, help="that each network sees (rounds are whole); 0: no such network"
    )
    parser.add_argument("--systems", default=",".join(SYSTEMS), help="those networks")
    parser.add_argument("--test", type=int, default=100_000)
    parser.add_argument("--learners", default="mlp,pretrained", help="registered learners that are trained beside")
    parser.add_argument("--few", default="5000,25000,60000,250000", help="showers with which these are trained")
    parser.add_argument("--workers", type=int, default=1, help="processes that draw showers")
    options = parser.parse_args()
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    torch.set_num_threads(1)
    options.work.mkdir(parents=True, exist_ok=True)
    kept = options.work / f"test-{options.test}.npz"
    if not kept.exists():
        portions: list[Portion] = []
        stream = draw_ahead(TEST_SEED, range(1_000_000), options.workers, draw)
        while sum(map(len, portions)) < options.test:
            portions.append(next(stream)[0])
        stream.close()  # type: ignore[attr-defined]
        write_npz(kept, **vars(Portion.joined(portions)))
    with np.load(kept) as content:
        test = Portion(**{name: content[name][: options.test] for name in content.files})
    names, sizes = options.learners.split(","), [int(n) for n in options.few.split(",") if n]
    predictions: dict[tuple[str, int], np.ndarray] = {}
    if options.showers:
        systems = options.systems.split(",")
        predictions |= streamed(systems, options.showers, test, options.work, options.workers)
    predictions |= with_few(names, sizes, test, options.work)
    print("", table(predictions, test.labels), with_more(predictions, test.labels, names), sep="\n\n")
    if options.showers:
        print("", errors_table(), sep="\n")


if __name__ == "__main__":
    main()
