"""Libraries of interactions with air: a Sibyll above 70 GeV, UrQMD 3.4 below, both through chromo 0.11.0.

Short-lived secondaries have decayed. One file a projectile and node of energy, so that an interrupted library goes on.
chromo is needed here alone, and is imported only when interactions are made.
"""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.world.cascade.transport import (
    ELECTRON,
    FIRST_NODE,
    K_LONG,
    KAON,
    MUON,
    N_NODES,
    NODE_STEP,
    NUCLEON,
    PHOTON,
    PION,
    SLOW,
    Library,
)
from showerstack.runtime.errors import InputError
from showerstack.runtime.files import write_npz

LOG = logging.getLogger(__name__)
CHROMO = "0.11.0"
GENERATORS = {
    "sibyll21": "Sibyll21",
    "sibyll23d": "Sibyll23d",
    "sibyll23e": "Sibyll23e",
    "sibyll23dstar": "Sibyll23dStarMixed",
}
"""chromo's class of each model; those that work without a download."""
LOW_ENERGY = "UrQMD34"
N_LOW = 6
"""Nodes that belong to UrQMD: up to 45 GeV."""
PROJECTILES = ("p", "pi+", "K+")
INTERACTIONS = (4000, 2500, 1500)
"""Interactions by projectile; half of them below 1 TeV."""
LOW_INTERACTIONS = (400, 500, 240)
LEAST_INTERACTIONS = 60
"""At least so many are asked for, however small the scale, and again if all were elastic: nodes must not be empty."""
KINDS = {2212: NUCLEON, 2112: NUCLEON, 211: PION, 321: KAON, 130: K_LONG, 22: PHOTON, 11: ELECTRON, 13: MUON}
"""By absolute PDG number."""
LEAST_GEV, LEAST_HIGH_GEV = 0.9, 1.0
"""Secondaries of less energy are dropped; the second from 10^2.5 GeV on."""
LEAST_NUCLEON_GEV = 2.0
"""Nucleons of less energy are the target's."""


def lg_node(node: int) -> float:
    """Return lg(E/GeV) of a node."""
    return FIRST_NODE + NODE_STEP * node


class _Secondaries:
    """Collects stable secondaries; short-lived ones decay in two bodies, uniformly between their limits."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng, self.kinds, self.shares = rng, [], []  # type: ignore[var-annotated]

    def add(self, kind: int, share: np.ndarray) -> None:
        self.kinds.append(np.full(len(share), kind, np.int8))
        self.shares.append(share)

    def add_photons(self, share: np.ndarray) -> None:
        """Let neutral pions or etas decay into two photons."""
        u = self.rng.random(len(share))
        self.add(PHOTON, share * u)
        self.add(PHOTON, share * (1 - u))

    def take(self, pdg: np.ndarray, share: np.ndarray) -> None:
        """Add an interaction's final state; branching ratios of the Review of Particle Physics."""
        number = np.abs(pdg)
        for particle, kind in KINDS.items():
            rows = number == particle
            if rows.any():
                self.add(kind, share[rows])
        rows = np.isin(number, (111, 221))
        if rows.any():
            self.add_photons(share[rows])
        rows = number == 310  # K short
        if rows.any():
            x, n = share[rows], int(rows.sum())
            f = 0.5 * (1 + 0.828 * self.rng.uniform(-1, 1, n))
            charged = self.rng.random(n) < 0.692
            self.add(PION, (x * f)[charged])
            self.add(PION, (x * (1 - f))[charged])
            self.add_photons((x * f)[~charged])
            self.add_photons((x * (1 - f))[~charged])
        rows = np.isin(number, (3122, 3212))  # Lambda, and Sigma0 as one
        if rows.any():
            x, n = share[rows], int(rows.sum())
            f = 0.8458 + 0.0905 * self.rng.uniform(-1, 1, n)
            charged = self.rng.random(n) < 0.641
            self._baryon(x, f, charged)
        rows = np.isin(number, (3112, 3222, 3312, 3322, 3334))  # Sigma-, Sigma+, Xi-, Xi0, Omega
        if rows.any():
            x, n = share[rows], int(rows.sum())
            f = 0.805 + 0.16 * self.rng.uniform(-1, 1, n)
            to_charged = np.where(number[rows] == 3222, 0.48, np.where(number[rows] == 3322, 0.0, 1.0))
            self._baryon(x, f, self.rng.random(n) < to_charged)
        rows = np.isin(number, (411, 421, 431))  # charmed mesons interact as kaons
        if rows.any():
            self.add(KAON, share[rows])

    def _baryon(self, share: np.ndarray, nucleon: np.ndarray, charged: np.ndarray) -> None:
        self.add(NUCLEON, share * nucleon)
        self.add(PION, (share * (1 - nucleon))[charged])
        self.add_photons((share * (1 - nucleon))[~charged])


def final_state(pdg: np.ndarray, share: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return kinds and energy shares after the decays of short-lived secondaries."""
    secondaries = _Secondaries(rng)
    secondaries.take(pdg, share)
    return np.concatenate(secondaries.kinds), np.concatenate(secondaries.shares)


def is_elastic(pdg: np.ndarray, share: np.ndarray, projectile: str) -> bool:
    """Return whether UrQMD's event has no new meson and a leading particle: elastic, or none."""
    mesons = np.isin(np.abs(pdg), (211, 111, 321, 130, 310, 221)).sum()
    return bool(mesons == (0 if projectile == "p" else 1) and share.max() > 0.85)


def make(generator: str, folder: Path, scale: float, seed: int) -> None:
    """Write the nodes of a generator that are not there yet.

    Parameters
    ----------
    generator
        chromo's class.
    folder
        Gets ``{projectile}_{node}.npz``.
    scale
        Times the interactions of full statistics.
    seed
        Each node has its own random numbers.

    Raises
    ------
    InputError
        If chromo 0.11.0 is not installed.
    """
    low = generator == LOW_ENERGY
    missing = [
        (node, p)
        for node in (range(N_LOW) if low else range(N_LOW, N_NODES))
        for p in range(len(PROJECTILES))
        if not node_file(folder, p, node).exists()
    ]
    if not missing:
        return
    folder.mkdir(parents=True, exist_ok=True)
    folder = folder.resolve()
    with chdir(folder):  # UrQMD leaves its tables where it is started
        _make(generator, folder, missing, scale, seed)


def _make(generator: str, folder: Path, missing: list[tuple[int, int]], scale: float, seed: int) -> None:
    low, run = generator == LOW_ENERGY, None
    for node, p in missing:
        started, lg = time.process_time(), lg_node(node)
        run = _generator(generator, lg, PROJECTILES[p], run)
        # The generator draws from this state, and every file has the same content whatever was made before it.
        run.random_state = np.random.default_rng([seed, p, node]).bit_generator.state
        full = LOW_INTERACTIONS[p] if low else INTERACTIONS[p] // (2 if lg <= 3 else 1)
        kinds, shares, first = [], [], [0]
        rng, asked = np.random.default_rng([seed + 1, p, node]), max(round(scale * full), LEAST_INTERACTIONS)
        while not kinds:
            for kind, share in _interactions(run, asked, lg, p, low, rng):
                kinds.append(kind)
                shares.append(share)
                first.append(first[-1] + len(kind))
        try:
            section = float(run.cross_section().prod)
        except (AttributeError, NotImplementedError, ValueError):
            section = float("nan")  # UrQMD's are not used
        write_npz(
            node_file(folder, p, node), kind=np.concatenate(kinds), share=np.concatenate(shares),
            first=np.array(first, np.int64), cross_section=np.float64(section),
        )  # fmt: skip
        LOG.info(
            "%s %s at 10^%.2f GeV: %d interactions, %.1f s", generator, PROJECTILES[p], lg, len(first) - 1,
            time.process_time() - started,
        )  # fmt: skip


def node_file(folder: Path, projectile: int, node: int) -> Path:
    """Return the file of a projectile and node."""
    return folder / f"{projectile}_{node:02d}.npz"


def _generator(name: str, lg: float, projectile: str, run: Any) -> Any:
    """Return chromo's generator, set to an energy and projectile; a process can hold one only."""
    try:
        import chromo
    except ImportError:
        raise InputError(f"interactions are made by chromo: pip install chromo=={CHROMO}") from None
    if chromo.__version__ != CHROMO:
        raise InputError(f"chromo {chromo.__version__} is installed: pip install chromo=={CHROMO}")
    from chromo import models
    from chromo.kinematics import FixedTarget, GeV

    air = chromo.util.CompositeTarget([("N", 0.785), ("O", 0.215)])
    kinematics = FixedTarget(10**lg * GeV, projectile, air)
    if run is None:
        return getattr(models, name)(kinematics, seed=1)
    run.kinematics = kinematics
    return run


def _interactions(
    run: Any, n: int, lg: float, projectile: int, low: bool, rng: np.random.Generator
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield kinds and energy shares, highest first, of each interaction."""
    energy = 10**lg
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for event in run(n):
            state = event.final_state()
            pdg, share = state.pid, state.en / energy
            if low and is_elastic(pdg, share, PROJECTILES[projectile]):
                continue
            kind, share = final_state(pdg, share, rng)
            kept = share * energy > (LEAST_GEV if lg < 2.5 else LEAST_HIGH_GEV)
            order = np.argsort(-share[kept], kind="stable")
            yield kind[kept][order], share[kept][order].astype(np.float32)


def load(high: Path, low: Path) -> Library:
    """Read a library; UrQMD's nodes have the cross-section of the lowest node above them."""
    kinds, shares, firsts = [], [], []
    start, count = np.zeros((3, N_NODES), np.int64), np.zeros((3, N_NODES), np.int64)
    section = np.zeros((3, N_NODES))
    secondaries = interactions = 0
    for p in range(3):
        for node in range(N_NODES):
            with np.load(node_file(low if node < N_LOW else high, p, node), allow_pickle=False) as stored:
                kind, share, first = stored["kind"], stored["share"], stored["first"]
                section[p, node] = stored["cross_section"]
            slow = (kind == NUCLEON) & (share * 10 ** lg_node(node) < LEAST_NUCLEON_GEV)
            kinds.append(np.where(slow, np.int8(SLOW), kind))
            shares.append(share)
            firsts.append(first[:-1] + secondaries)
            secondaries += first[-1]
            start[p, node], count[p, node] = interactions, len(first) - 1
            interactions += len(first) - 1
        section[p, :N_LOW] = section[p, N_LOW]
    firsts.append(np.array([secondaries]))
    return Library(np.concatenate(kinds), np.concatenate(shares), np.concatenate(firsts), start, count, section)
