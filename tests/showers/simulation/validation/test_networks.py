"""Published networks: loaded without running code, and simulated events compared with what they said of real ones."""

from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from rich.console import Console
from scipy.stats import norm

from benchmarks.world.comparison import compare, joint_areas, network_tables, without_rare
from benchmarks.world.networks import (
    PublishedNetwork,
    augmented,
    inputs,
    load_networks,
    norm_deviations,
    posteriors,
    two_sample,
)
from runtime.errors import InputError
from showers.simulation import load_settings


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder as published, of one network that was never trained and posteriors that say nothing."""
    torch.manual_seed(1)
    torch.save(PublishedNetwork().state_dict(), tmp_path / "model_v1_none.pt")
    rng = np.random.default_rng(1)
    said = rng.dirichlet(np.ones(5), 800).astype(np.float16)
    np.savez(tmp_path / "posteriors_real.npz", labels=rng.integers(0, 5, 800).astype(np.int8), v1=said)
    return tmp_path


def events(n: int, seed: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(seed)
    grids = rng.exponential(20.0, (n, 16, 16, 2)) * (rng.random((n, 16, 16, 2)) < 0.5)
    ne = rng.normal(5.2, 0.4, n)
    return inputs(grids, {"E": ne + 10, "Ze": 30 * rng.random(n), "Ne": ne, "Nmu": ne - 0.8, "Age": np.ones(n)})


def test_comparison_is_complete(folder: Path) -> None:
    (found,) = compare(load_networks(folder), load_settings(), n=400, workers=1)
    assert found.n == 400
    assert found.real_accuracy[1].low < found.real_accuracy[0] < found.real_accuracy[1].high
    assert set(found.areas) == {"all", "proton", "helium", "carbon", "silicon", "iron"}
    # Posteriors of an untrained network hardly vary; the others cover the simplex.
    assert found.areas["all"].area > 0.95
    assert 0.4 < found.floors["all"].area < 0.6
    assert len(found.norms) == 9
    console = Console(record=True, width=140)
    for table in network_tables(found):
        console.print(table)
    text = console.export_text()
    assert "iron called proton" in text
    assert "head.5" in text
    assert "posteriors below" in text


def test_two_networks_together_see_what_neither_sees_alone(folder: Path) -> None:
    (network,) = load_networks(folder)
    labels = network.labels[:400]
    # Each network's posteriors are as in the real data, but here the two always agree.
    rng = np.random.default_rng(4)
    real, other = (replace(network, posteriors=rng.dirichlet(np.ones(5), 800)) for _ in range(2))
    same = rng.dirichlet(np.ones(5), 400)
    views = [Mock(labels=labels, said=same) for _ in range(2)]
    together, _, floors = joint_areas([real, other], views)
    assert abs(two_sample(same, real.posteriors).area - 0.5) < 0.08
    assert together["all"].area > 0.8
    assert 0.4 < floors["all"].area < 0.6
    with pytest.raises(InputError, match="different real events"):
        joint_areas([real, replace(other, labels=other.labels[::-1])], views)


def test_what_differs_in_excluded_classes_only_is_left_out() -> None:
    rng = np.random.default_rng(5)

    def excluding(level: float, n: int) -> np.ndarray:
        first = rng.uniform(0.3, 0.6, n)
        rest = level * rng.uniform(0.5, 1.5, (n, 3))
        return np.column_stack([first, 1 - first - rest.sum(axis=1), rest]).astype(np.float16)

    a, b = excluding(0.010, 400), excluding(0.005, 400)
    assert two_sample(a, b).area > 0.9
    assert abs(two_sample(without_rare(a), without_rare(b)).area - 0.5) < 0.1
    both = without_rare(np.hstack([a, b]))
    np.testing.assert_allclose(both[:, :5], without_rare(a))
    np.testing.assert_allclose(both.sum(axis=1), 2.0, rtol=1e-5)
    assert (both[:, 2:5] == 0).all()


def test_running_moments_of_the_same_events_leave_no_deviation() -> None:
    torch.manual_seed(2)
    network = PublishedNetwork()
    cells, scalars = events(160)
    # The norms' own way of learning their moments; layer by layer, so that each sees what the ones before let pass.
    for _ in range(9):
        found = norm_deviations(network, cells, scalars)
        for name, module in network.named_modules():
            if name in found:
                sd = np.sqrt(module.running_var.numpy())
                module.running_mean += torch.from_numpy((found[name].mean * sd).astype(np.float32))
                module.running_var *= torch.from_numpy(np.exp(2.0 * found[name].ln_width).astype(np.float32))
    again = norm_deviations(network, cells, scalars)
    assert max(np.abs(d.mean).max() for d in again.values()) < 1e-3
    assert max(np.abs(d.ln_width).max() for d in again.values()) < 1e-3
    brighter = norm_deviations(network, cells + 1.0, scalars)
    assert np.abs(brighter["cnn.1"].mean).max() > 0.1
    assert np.abs(brighter["feat_mlp.1"].mean).max() < 1e-3


def test_comparing_leaves_the_network_as_it_was() -> None:
    torch.manual_seed(2)
    network = PublishedNetwork().eval()
    read = events(64)
    before = posteriors(network, *read)
    norm_deviations(network, *read)
    assert (posteriors(network, *read) == before).all()
    assert before.dtype == np.float16


def test_augmentation_keeps_what_it_must() -> None:
    cells, _ = events(1000)
    moved = augmented(cells, np.random.default_rng(1))
    # Cut-out in 3 of 10 events removes one cell of 16 there; noise has no mean; symmetries change no sum.
    assert float(moved.mean() / cells.mean()) == pytest.approx(1.0 - 0.3 / 16, abs=0.006)
    assert moved.shape == cells.shape
    assert float((moved == cells).all(dim=3).all(dim=2).all(dim=1).float().mean()) < 0.2


def test_state_dicts_that_carry_code_or_another_network_are_refused(folder: Path) -> None:
    file = folder / "model_v1_none.pt"
    torch.save(PublishedNetwork(), file)
    with pytest.raises(InputError, match="not the state dict"):
        load_networks(folder)
    torch.save({"weight": torch.zeros(3)}, file)
    with pytest.raises(InputError, match="not the state dict"):
        load_networks(folder)
    file.rename(folder / "model_v7_none.pt")
    with pytest.raises(InputError, match="lacks 'labels' or 'v7'"):
        load_networks(folder)
    (folder / "model_v7_none.pt").unlink()
    with pytest.raises(InputError, match=r"no model_\*\.pt"):
        load_networks(folder)
    (folder / "posteriors_real.npz").unlink()
    with pytest.raises(InputError, match="cannot be read"):
        load_networks(folder)


def test_two_samples_are_told_apart_as_well_as_they_can_be() -> None:
    rng = np.random.default_rng(5)
    a, b, c = (rng.normal(mean, 1.0, (1500, 3)) for mean in (0.0, 0.0, 0.6))
    same, apart = two_sample(a, b), two_sample(a, c)
    assert same.interval.low - 0.01 < 0.5 < same.interval.high + 0.01
    best = norm.cdf(0.6 * np.sqrt(3) / np.sqrt(2))
    assert best - 0.06 < apart.area < best + 0.02
