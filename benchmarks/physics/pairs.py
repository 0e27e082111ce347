"""One pool of showers simulated again with other muon and electron numbers: what nature's scales do to each of them.

The same showers, from the same random numbers, are simulated at muon and electron scales of -2, 0 and 2 widths (nine
sets), reconstructed and predicted. Between these nodes each shower's sizes, energy and y are parabolas; a shower that a
node lacks, since its electrons do not pass the cut there, has the values of the nearest node it is in, moved as the
others are in the mean. Nothing here uses the analysis's own moves.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np

from benchmarks.shared.samples import sample
from showerstack.analysis.events import truth_of
from showerstack.analysis.options import Widths
from showerstack.analysis.spectra.folding import mass_summary
from showerstack.analysis.spectra.reading import Response
from showerstack.runtime.context import bar
from showerstack.runtime.files import write_npz
from showerstack.showers.dataset import Dataset
from showerstack.showers.schema import COMPOSITION
from showerstack.showers.simulation import load_settings

NODES = (-2, 0, 2)
"""Of the muon and the electron scale, in widths."""
VALUES = ("lg_energy", "lg_ne", "lg_nmu", "y")
WIDTHS = Widths()


@dataclass(frozen=True)
class PairedPool:
    """Showers (N,) with what is measured of them at nine nodes."""

    labels: np.ndarray
    true_lg_energy: np.ndarray
    zenith_deg: np.ndarray
    model: np.ndarray
    values: np.ndarray
    """(3 muons, 3 electrons, N, 4) by :data:`NODES` and :data:`VALUES`."""
    measured: np.ndarray
    """(3, 3, N) bool: whether a shower is in that node's set."""
    thrown: np.ndarray
    """(M, K, T) primaries behind the showers."""

    def at(self, muons: float, electrons: float) -> np.ndarray:
        """Return (N, 4) values at scales in widths, by parabolas through the nodes."""
        weights = [_parabola(x) for x in (muons, electrons)]
        return np.asarray(np.einsum("m,e,menv->nv", *weights, self.values))

    @property
    def y_again(self) -> np.ndarray:
        """(N, 4) y with muons moved down and up, then electrons; NaN where a node lacks the shower."""
        nodes = ((0, 1), (2, 1), (1, 0), (1, 2))
        return np.stack([np.where(self.measured[node], self.values[node][:, 3], np.nan) for node in nodes], axis=1)


def _parabola(x: float) -> np.ndarray:
    """Return the weights of three nodes in the parabola through them."""
    u = x / NODES[2]
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
    work: Path, read: Callable[[Path], Response], showers: int, seed: int, fine: np.ndarray, workers: int | None = None
) -> PairedPool:
    """Simulate and predict what is missing of the nine sets, and pair their showers.

    Parameters
    ----------
    read
        Predicts a set.
    fine
        Borders of the true lg(E/eV) by which primaries are counted, as ``read`` has them.
    """
    nodes = {}
    for muons, electrons in sorted(product(NODES, NODES), key=lambda one: abs(one[0]) + abs(one[1])):
        file = work / f"pairs-{showers}-{seed}-muons{muons:+d}-electrons{electrons:+d}.npz"
        if not file.exists():
            folder = sample(
                COMPOSITION, work, n_train=1, n_test=showers, seed=seed, world=world_file(work, muons, electrons),
                workers=workers, bars=bar,
            )  # fmt: skip
            _keep(file, folder / f"{COMPOSITION.name}_test", read)
            shutil.rmtree(folder)
        with np.load(file, allow_pickle=False) as stored:
            nodes[NODES.index(muons), NODES.index(electrons)] = dict(stored)
    return _paired(nodes, fine)


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


def _paired(nodes: dict[tuple[int, int], dict[str, np.ndarray]], fine: np.ndarray) -> PairedPool:
    """Join the nodes by their showers' numbers, up to the last one that all nodes have reached."""
    last = min(int(node["last"]) for node in nodes.values())
    shortest = min(nodes.values(), key=lambda node: int(node["last"]))
    numbers = np.unique(np.concatenate([node["shower"][node["shower"] <= last] for node in nodes.values()]))
    n = len(numbers)
    values, measured = np.full((3, 3, n, len(VALUES)), np.nan), np.zeros((3, 3, n), dtype=bool)
    fixed = {name: np.zeros(n, dtype=nodes[1, 1][name].dtype) for name in ("labels", "true_lg_energy", "zenith_deg",
                                                                           "model")}  # fmt: skip
    for place, node in nodes.items():
        used = node["shower"] <= last
        at = np.searchsorted(numbers, node["shower"][used])
        values[(*place, at)] = np.stack([node[name][used] for name in VALUES], axis=1)
        measured[(*place, at)] = True
        for name, column in fixed.items():
            column[at] = node[name][used]
    filled = values.copy()
    for place in nodes:
        near = sorted(nodes, key=lambda one: abs(one[0] - place[0]) + abs(one[1] - place[1]))
        for other in near[1:]:
            missing = np.isnan(filled[place][:, 0]) & measured[other]
            both = measured[place] & measured[other]
            filled[place][missing] = values[other][missing] + np.mean(values[place][both] - values[other][both], axis=0)
    return PairedPool(**fixed, values=filled, measured=measured, thrown=shortest["thrown"])
