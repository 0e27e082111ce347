"""Predictions without torch are those of torch, from memory and from files, and nothing imports torch for them."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from showerstack.models.networks.forward import AT_ONCE, ResidualForward, gelu, normalise
from showerstack.models.networks.loop import predict_logits
from showerstack.models.networks.physics import TabularMLP
from showerstack.models.networks.predictor import WEIGHTS_FILE, TablePredictor
from showerstack.models.pretraining.learner import FineTuned
from showerstack.models.pretraining.network import Architecture
from showerstack.models.registry import open_predictor
from showerstack.runtime.errors import InputError
from tests.models.conftest import CLASSES, gaussian_events

N_EVENTS = 2 * AT_ONCE + 37


def arrays_of(network: nn.Module) -> dict[str, np.ndarray]:
    return {name: value.numpy() for name, value in network.state_dict().items()}


@pytest.mark.parametrize(("width", "blocks", "hidden"), [(256, 4, 512), (24, 1, 40), (16, 0, 8)])
def test_outputs_are_those_of_torch_in_double_precision(width: int, blocks: int, hidden: int) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        network = FineTuned(Architecture(30, width, blocks, hidden), 5, 0.0).eval()
        for value in network.parameters():
            value.data += 0.1 * torch.randn_like(value)
        inputs = 1.5 * torch.randn(N_EVENTS, 30)
    own = ResidualForward.of(arrays_of(network), ("head", "truth"), "body.")(inputs.numpy())
    with torch.inference_mode():
        embedding = network.double().body(inputs.double(), torch.cat([network.world, torch.ones(1)]))
        exact = torch.cat([network.head(embedding), network.truth(embedding)], dim=1).numpy()
    difference = np.abs(own - exact) / np.abs(exact).max()
    assert difference.max() < 1e-5
    assert np.median(difference) < 1e-6


def test_gelu_is_x_times_the_normal_distribution() -> None:
    x = np.concatenate([np.linspace(-14, 14, 2001), [0.0, 1e-20, -1e-20, 300, -300]]).astype(np.float32)
    expected = [0.5 * float(v) * math.erfc(-float(v) / math.sqrt(2)) for v in x]
    got, bias = np.stack([x - 1, x - 1]), np.ones(len(x), np.float32)
    gelu(got, bias)
    exact = np.array([0.5 * float(v) * math.erfc(-float(v) / math.sqrt(2)) for v in (x - 1) + bias])
    np.testing.assert_allclose(got, [exact, exact], atol=2e-6, rtol=1e-6)
    np.testing.assert_allclose(exact, expected, atol=1e-5)


def test_rows_are_normalised() -> None:
    x = np.random.default_rng(1).normal(3, [[0.01], [2], [50]], size=(3, 100)).astype(np.float32)
    out, scale, shift = np.empty_like(x), np.full(100, 2, np.float32), np.full(100, -1, np.float32)
    normalise(x, scale, shift, out)
    expected = nn.functional.layer_norm(torch.from_numpy(x).double(), (100,)).numpy() * 2 - 1
    np.testing.assert_allclose(out, expected, atol=2e-4)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[TabularMLP, Path]:
    """A fitted perceptron with class weights and label smoothing, and its folder."""
    settings = {"epochs": 2, "width": 24, "hidden": 32, "class_weights": "balanced", "label_smoothing": 0.1}
    learner = TabularMLP(CLASSES, settings)
    learner.fit(gaussian_events(600, 1).batch, gaussian_events(200, 2).batch, seed=1)
    folder = tmp_path_factory.mktemp("saved") / "mlp"
    learner.save(folder)
    return learner, folder


def test_a_saved_learner_predicts_the_same_bytes_without_torch(saved: tuple[TabularMLP, Path]) -> None:
    learner, folder = saved
    new = gaussian_events(N_EVENTS, 3).batch
    expected = learner.predict_log_proba(new)
    opened = open_predictor(folder)
    assert isinstance(opened, TablePredictor)
    np.testing.assert_array_equal(opened.predict_log_proba(new), expected)
    np.testing.assert_array_equal(TabularMLP.load(folder).predict_log_proba(new), expected)
    by_torch = learner._log_posterior(predict_logits(learner.network_, learner._tensors(new, "cpu")))
    np.testing.assert_allclose(expected, by_torch, atol=2e-5)
    assert opened.predict_log_proba(new.take(np.arange(0))).shape == (0, 5)


def test_nothing_imports_torch(saved: tuple[TabularMLP, Path]) -> None:
    program = (
        "import sys; from pathlib import Path; from showerstack.models.registry import open_predictor; "
        "print(open_predictor(Path(sys.argv[1])).classes, *({'torch', 'sklearn'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(saved[1])], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.strip() == str(CLASSES)


def test_weights_of_another_network_are_refused(saved: tuple[TabularMLP, Path], tmp_path: Path) -> None:
    learner, folder = saved
    other = TabularMLP(CLASSES, {"epochs": 1, "width": 16, "hidden": 32})
    other.fit(gaussian_events(300, 1).batch, gaussian_events(100, 2).batch, seed=1)
    assert other.inputs_ is not None
    tensors = arrays_of(other.network_.network)
    for spoilt, values in (
        ("head.weight", np.zeros((5, 3), np.float32)),
        ("embed.weight", np.zeros((16, 2), np.float32)),
    ):
        with pytest.raises(InputError, match="network"):
            TablePredictor.of({**tensors, spoilt: values}, CLASSES, other.inputs_, None, 0.0)
    del tensors["norm.weight"]
    with pytest.raises(InputError, match=r"norm\.weight"):
        TablePredictor.of(tensors, CLASSES, other.inputs_, None, 0.0)
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    content = (tmp_path / WEIGHTS_FILE).read_bytes()
    (tmp_path / WEIGHTS_FILE).write_bytes(content[:-40])
    with pytest.raises(InputError, match="damaged"):
        open_predictor(tmp_path)
    assert learner.n_parameters > 0
