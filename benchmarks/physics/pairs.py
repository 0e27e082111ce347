"""One pool of showers simulated again with other muon and electron numbers: what nature's scales do to each of them.

The same showers, from the same random numbers, are simulated as they are, and with the muon or the electron scale off
by -2 and 2 widths (five sets), reconstructed and predicted. Between these nodes each shower's sizes, energy and y are
parabolas, and what both scales do adds up; a shower that a node lacks, since its electrons do not pass the cut there,
has the values of another node it is in, moved as the others are in the mean, with electrons below the cut. Nothing here
is moved by the analysis.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np

from benchmarks.physics.pseudo_experiments import COPY_ENERGY, COPY_Y, SmoothTruth
from benchmarks.shared.samples import sample
from showerstack.analysis.events import truth_of
from showerstack.analysis.options import Widths
from showerstack.analysis.spectra.folding import mass_summary
from showerstack.analysis.spectra.reading import Response
from showerstack.analysis.spectra.response import Binning, Simulated
from showerstack.runtime.context import bar
from showerstack.runtime.files import write_npz
from showerstack.showers.dataset import Dataset
from showerstack.showers.kascade import LG_NE_MIN, LG_NMU_MIN, LN_MASSES
from showerstack.showers.schema import COMPOSITION
from showerstack.showers.simulation import load_settings
from showerstack.showers.simulation.sky import Sky

NODES = ((0, 0), (-2, 0), (2, 0), (0, -2), (0, 2))
"""Muon and electron scale of the sets, in widths."""
REACH = 2
VALUES = ("lg_energy", "lg_ne", "lg_nmu", "y")
LG_NE = VALUES.index("lg_ne")
FAILED_BY = 0.005
"""By how much in lg Ne, at least, a shower fails the cut at a node whose set lacks it."""
WIDTHS = Widths()


@dataclass(frozen=True)
class PairedPool:
    """Showers (N,) with what is measured of them at :data:`NODES`."""

    labels: np.ndarray
    true_lg_energy: np.ndarray
    zenith_deg: np.ndarray
    model: np.ndarray
    values: np.ndarray
    """(5, N, 4) by :data:`NODES` and :data:`VALUES`."""
    measured: np.ndarray
    """(5, N) bool: whether a shower is in that node's set."""
    thrown: np.ndarray
    """(M, K, T) primaries behind the showers."""

    def at(self, muons: float, electrons: float) -> np.ndarray:
        """Return (N, 4) values at scales in widths, by parabolas through the nodes."""
        (down, middle, up), (less, _, more) = _parabola(muons), _parabola(electrons)
        weights = np.array([middle - less - more, down, up, less, more])
        return np.asarray(np.einsum("j,jnv->nv", weights, self.values))

    @property
    def y_again(self) -> np.ndarray:
        """(N, 4) y with muons moved down and up, then electrons; NaN where a node lacks the shower."""
        return np.where(self.measured[1:], self.values[1:, :, 3], np.nan).T


@dataclass(frozen=True)
class PairedTruth(SmoothTruth):
    """A smooth truth that moves with the scales as its showers did when they were simulated again.

    The analysis's simulation is drawn from the showers as they are at scales of 0, and knows how they move from what it
    is told of the axes' nodes (``pairs``) or, as for archives without a simulation, from the regression.
    """

    pool: PairedPool

    @classmethod
    def of_pool(cls, pool: PairedPool, bins: Binning, *, pairs: bool = True) -> PairedTruth:
        """Copy the showers of a pool, nine times each."""
        there = np.flatnonzero(pool.measured[0])
        now = pool.values[0][there]
        y = now[:, 3]
        events = Simulated(
            log_proba=_posteriors(y), predicted=pool.labels[there].astype(np.int64), lg_energy=now[:, 0],
            lg_ne=now[:, 1], lg_nmu=now[:, 2], zenith_deg=pool.zenith_deg[there], labels=pool.labels[there],
            true_lg_energy=pool.true_lg_energy[there], model=pool.model[there],
            mirrored=np.tile([True, False], (len(there), 1)), y_again=pool.y_again[there] if pairs else None,
        )  # fmt: skip
        smooth = SmoothTruth.of(events, pool.thrown.sum(axis=0), bins)
        return cls(smooth.cells, smooth.copies, smooth.thrown, pool)

    def expected(self, sky: Sky, scales: np.ndarray) -> np.ndarray:
        """Return expected counts (C,) for an exposure of 1 m2 sr s."""
        particles = self.particles(sky, float(scales[0]) * WIDTHS.lg_energy)
        weight = np.divide(particles, self.thrown, out=np.zeros_like(self.thrown), where=self.thrown > 0)
        lg_energy, lg_ne, lg_nmu, y = self.pool.at(float(scales[1]), float(scales[2])).T
        passing = np.flatnonzero((lg_ne > LG_NE_MIN) & (lg_nmu > LG_NMU_MIN))
        fine, labels = self.cells.bins.fine_bin_of(self.pool.true_lg_energy[passing]), self.pool.labels[passing]
        step, last = float(np.diff(self.cells.bins.fine)[0]), self.thrown.shape[1] - 1
        counts = np.zeros(self.cells.n_cells)
        for shift, small in product((-1, 0, 1), (-1, 0, 1)):
            at = self.cells.cell_of(
                lg_energy[passing] + step * shift + COPY_ENERGY * small, y[passing] + COPY_Y * small
            )
            used = (at >= 0) & (fine + shift >= 0) & (fine + shift <= last)
            counts += np.bincount(at[used], weight[labels[used], fine[used] + shift], minlength=len(counts))
        return counts


def _posteriors(y: np.ndarray) -> np.ndarray:
    """Return log-posteriors (N, 5) whose mass summary is y: of the lightest and the heaviest group alone."""
    heavy = np.clip(y / LN_MASSES[-1], 1e-9, 1 - 1e-9)
    result = np.full((len(y), len(LN_MASSES)), 1e-12)
    result[:, 0], result[:, -1] = 1 - heavy, heavy
    return np.log(result)


def _parabola(x: float) -> np.ndarray:
    """Return the weights of three nodes in the parabola through them."""
    u = x / REACH
    return np.array([u * (u - 1) / 2, 1 - u * u, u * (u + 1) / 2])


def world_file(work: Path, muons: int, electrons: int) -> str:
    """Return the name of a world whose sizes are off by so many widths, or a file of its constants."""
    if not muons and not electrons:
        return "default"
    cascade = load_settings().cascade
    file = work / f"muons{muons:+d}electrons{electrons:+d}.toml"
    file.write_text(
        f"[cascade]\nlg_nmu_offset = {cascade.lg_nmu_offset + muons * WIDTHS.lg_muon:.6f}\n"
        f"lg_ne_offset = {cascade.lg_ne_offset + electrons * WIDTHS.lg_electron:.6f}\n",
        encoding="utf-8",
    )
    return str(file)


def paired_pool(
    work: Path, read: Callable[[Path], Response], showers: int, seed: int, workers: int | None = None
) -> PairedPool:
    """Simulate and predict what is missing of the five sets, and pair their showers.

    Parameters
    ----------
    read
        Predicts a set.
    """
    nodes = []
    for muons, electrons in NODES:
        file = work / f"pairs-{showers}-{seed}-muons{muons:+d}-electrons{electrons:+d}.npz"
        if not file.exists():
            folder = sample(
                COMPOSITION, work, n_train=1, n_test=showers, seed=seed, world=world_file(work, muons, electrons),
                workers=workers, bars=bar,
            )  # fmt: skip
            _keep(file, folder / f"{COMPOSITION.name}_test", read)
            shutil.rmtree(folder)
        with np.load(file, allow_pickle=False) as stored:
            nodes.append(dict(stored))
    return pool_of_nodes(nodes)


def _keep(file: Path, folder: Path, read: Callable[[Path], Response]) -> None:
    response = read(folder)
    events = response.events
    truth = truth_of(Dataset.open(folder, COMPOSITION), ("shower", "lg_energy", "model"))
    assert truth is not None
    assert events.group is not None
    assert events.true_lg_energy is not None
    assert events.model is not None
    row = events.group & ((1 << 40) - 1)
    write_npz(
        file, shower=truth["shower"].to_numpy()[row], labels=events.labels, true_lg_energy=events.true_lg_energy,
        zenith_deg=events.zenith_deg, model=events.model, lg_energy=events.lg_energy, lg_ne=events.lg_ne,
        lg_nmu=events.lg_nmu, y=mass_summary(events.log_proba), last=np.array(truth["shower"].to_numpy().max()),
        thrown=response.thrown.counts, settings=np.array(str(folder.name)),
    )  # fmt: skip


def pool_of_nodes(nodes: list[dict[str, np.ndarray]]) -> PairedPool:
    """Join the nodes by their showers' numbers, up to the last one that all nodes have reached."""
    shortest = min(nodes, key=lambda node: int(node["last"]))
    last = int(shortest["last"])
    numbers = np.unique(np.concatenate([node["shower"][node["shower"] <= last] for node in nodes]))
    n = len(numbers)
    values, measured = np.full((len(nodes), n, len(VALUES)), np.nan), np.zeros((len(nodes), n), dtype=bool)
    names = ("labels", "true_lg_energy", "zenith_deg", "model")
    fixed = {name: np.zeros(n, dtype=nodes[0][name].dtype) for name in names}
    for k, node in enumerate(nodes):
        used = node["shower"] <= last
        at = np.searchsorted(numbers, node["shower"][used])
        values[k, at] = np.stack([node[name][used] for name in VALUES], axis=1)
        measured[k, at] = True
        for name, column in fixed.items():
            column[at] = node[name][used]
    filled = values.copy()
    for k in range(len(nodes)):
        for other in range(len(nodes)):
            missing = np.isnan(filled[k, :, 0]) & measured[other]
            both = measured[k] & measured[other]
            filled[k, missing] = values[other, missing] + np.mean(values[k, both] - values[other, both], axis=0)
        # Showers fluctuate: moved by the mean, one in twenty of those that fail the cut would pass it.
        failed = ~measured[k]
        filled[k, failed, LG_NE] = np.minimum(filled[k, failed, LG_NE], LG_NE_MIN - FAILED_BY)
    return PairedPool(**fixed, values=filled, measured=measured, thrown=shortest["thrown"])
