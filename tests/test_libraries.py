"""What libraries really do, where this code relies on it or guards against it, as ``docs/libraries.md`` lists it.

A test that fails with a new version of a library says which line of that page has changed.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("runtime", "showers", "scoring", "features", "models", "stacking", "analysis", "report", "commands")
SOURCES = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]


@pytest.mark.slow
def test_no_compiled_kernel_takes_means() -> None:
    """Numba adds up float32 in float32, one after the other: sums are written out, in float64 where they are long."""
    compiled = [
        (path, function)
        for path in SOURCES
        for function in ast.walk(ast.parse(path.read_text()))
        if isinstance(function, ast.FunctionDef)
        and any(re.match(r"(njit|kernel)\b", ast.unparse(decorator)) for decorator in function.decorator_list)
    ]
    assert len(compiled) > 20
    for path, function in compiled:
        called = [node.func for node in ast.walk(function) if isinstance(node, ast.Call)]
        taken = {one.attr for one in called if isinstance(one, ast.Attribute)} & {"mean", "std", "var", "average"}
        assert not taken, (path, function.name)


def test_sums_within_groups_are_not_left_to_polars() -> None:
    """Its sum of Float32 in a group is a tenth too large for 2e7 equal terms; the sum of a whole column is right."""
    import polars as pl

    frame = pl.DataFrame({"group": np.zeros(20_000_000, np.int8), "v": np.full(20_000_000, 0.1, np.float32)})
    assert frame["v"].sum() == pytest.approx(2e6, rel=1e-6)
    if frame.group_by("group").agg(pl.col("v").sum())["v"][0] == pytest.approx(2e6, rel=1e-3):
        pytest.skip("this polars adds up groups rightly: the guard may go")
    for path in SOURCES:
        for block in re.findall(r"\.group_by\(.*?\)\s*\.agg\((.*?)\n", path.read_text(), re.DOTALL):
            assert ".sum(" not in block or "Float64" in block, path


def test_half_precision_is_not_added_up() -> None:
    """NumPy adds float16 in float16: a shower's deposits reach its largest number, 65,504 MeV."""
    from showerstack.features.device import decode_float16

    cells = np.full((1, 16, 16, 2), 1000.0, np.float16)
    with np.errstate(over="ignore"):
        assert np.isinf(cells.sum(dtype=np.float16))
    assert decode_float16(cells).sum() == 512_000


def test_tensors_of_any_memory_order_are_saved_as_they_are(tmp_path: Path) -> None:
    """safetensors refuses a transposed view of torch, and stores a Fortran array of NumPy in the order of memory."""
    torch = pytest.importorskip("torch")
    from safetensors.torch import load_file, save_file

    view = torch.arange(6.0).reshape(2, 3).T
    with pytest.raises(ValueError, match="contiguous"):
        save_file({"w": view}, tmp_path / "view.safetensors")
    save_file({"w": view.contiguous()}, tmp_path / "copy.safetensors")
    assert torch.equal(load_file(tmp_path / "copy.safetensors")["w"], view)
    for path in SOURCES:
        text = path.read_text()
        if re.search(r"^\s*save_file\(|[^_]save_file\(", text) and "safetensors" in text:
            assert "safetensors.numpy" not in text, path
            assert ".contiguous()" in text, path


def test_columns_of_tiny_numbers_are_learned() -> None:
    """LightGBM takes numbers below 1e-35 for zero: a table's columns are centred and scaled before they reach it."""
    lightgbm = pytest.importorskip("lightgbm")
    rng = np.random.default_rng(1)
    labels = rng.integers(0, 2, 2000)
    flux = 1e-38 * 10 ** (0.3 * rng.normal(size=2000) + 0.5 * labels)
    options = {"objective": "binary", "verbose": -1, "num_threads": 1}
    scores = {
        name: lightgbm.train(options, lightgbm.Dataset(column[:, None], labels), 5).predict(column[:, None])
        for name, column in (("as it is", flux), ("scaled", (flux - flux.mean()) / flux.std()))
    }
    assert np.ptp(scores["as it is"]) == 0
    assert np.ptp(scores["scaled"]) > 0.2


def test_a_frame_of_features_does_not_follow_the_next_chunk() -> None:
    """polars takes an array without a copy: a buffer that is used again would change frames that were given away."""
    import polars as pl

    from showerstack.features.catalogue import CATALOGUE
    from showerstack.features.compute import compute_events
    from showerstack.showers.array import KASCADE

    buffer = np.arange(3, dtype=np.float32)
    frame = pl.DataFrame({"x": buffer})
    buffer[:] = -1
    if frame["x"].to_list() != [-1, -1, -1]:
        pytest.skip("this polars copies: the guard may go")
    rng = np.random.default_rng(1)
    grids = rng.exponential(50, size=(2, 8, *KASCADE.grid_shape)).astype(np.float32) * KASCADE.has_detector.transpose(
        1, 2, 0
    )
    scalars = np.tile(np.array([15.5, 20.0, 30.0, 5.2, 4.3], np.float32), (8, 1))
    groups = frozenset({CATALOGUE["fit_lg_ne"].group})
    first = compute_events(grids[0], scalars, None, groups)
    kept = first.clone().to_numpy().copy()
    second = compute_events(grids[1], scalars, None, groups)
    np.testing.assert_array_equal(first.to_numpy(), kept)
    assert not np.array_equal(second.to_numpy(), kept, equal_nan=True)


def test_attention_is_defined_without_a_hit_and_blind_to_padding() -> None:
    """torch gives an empty set's attention as 0, NaN or a mean by the kernel that it takes: one station stays."""
    import torch

    from showerstack.models.networks.layers import Attention
    from showerstack.models.networks.stations import pack

    with torch.random.fork_rng():
        torch.manual_seed(1)
        attention = Attention(8, 2).eval()
        tokens = torch.randn(3, 6, 8)
    present = torch.tensor([[1, 1, 0, 1, 0, 0], [0] * 6, [1] * 6], dtype=torch.bool)
    queries = torch.ones(3, 1, 8)
    with torch.inference_mode():
        packed, counts = pack(tokens, present)
        assert counts.any(dim=1).all()
        together = attention(queries, packed, counts)
        assert torch.isfinite(together).all()
        for k in range(3):
            alone = attention(queries[k : k + 1], *pack(tokens[k : k + 1], present[k : k + 1]))
            torch.testing.assert_close(alone[0], together[k], rtol=0, atol=1e-5)
