"""The forward pass of residual networks on tables without torch: products by BLAS, the rest one compiled pass each.

``pretrained`` and ``mlp`` predict with it on a CPU, whether they were trained in this process or read from a file, so
that a prediction needs no torch: its import takes longer than 30,000 showers. The passes
are compiled in :mod:`showerstack.models.networks.passes`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np

from showerstack.runtime.errors import InputError
from showerstack.runtime.kernels import kernel_of

AT_ONCE = 256
"""Events in a batch: what belongs to them stays in a processor's second-level cache."""
_PASSES = "showerstack.models.networks.passes"
gelu, normalise, _add = (kernel_of(_PASSES, name) for name in ("gelu", "normalise", "add"))


@dataclass(frozen=True)
class Linear:
    """A layer ``x W + b``."""

    weight: np.ndarray
    """(inputs, outputs) float32, C-ordered."""
    bias: np.ndarray
    """(outputs,) float32."""

    @classmethod
    def of(cls, tensors: Mapping[str, np.ndarray], name: str) -> Self:
        """Return the layer of that name, whose weight is stored as (outputs, inputs)."""
        weight, bias = tensors[f"{name}.weight"], tensors[f"{name}.bias"]
        if weight.ndim != 2 or bias.shape != weight.shape[:1]:
            raise ValueError(f"{name}: weight {weight.shape}, bias {bias.shape}")
        return cls(np.ascontiguousarray(weight.T), np.ascontiguousarray(bias))


def _norm_of(tensors: Mapping[str, np.ndarray], name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return scale and shift of the norm of that name."""
    return np.ascontiguousarray(tensors[f"{name}.weight"]), np.ascontiguousarray(tensors[f"{name}.bias"])


@dataclass(frozen=True)
class _Block:
    """``x + W2 gelu(W1 norm(x))``."""

    scale: np.ndarray
    shift: np.ndarray
    widen: Linear
    narrow: Linear


@dataclass(frozen=True)
class ResidualForward:
    """Embedding, residual blocks, norm, and heads side by side."""

    embed: Linear
    blocks: tuple[_Block, ...]
    scale: np.ndarray
    shift: np.ndarray
    heads: Linear
    """All heads as one layer."""

    @classmethod
    def of(cls, tensors: Mapping[str, np.ndarray], heads: tuple[str, ...] = ("head",), prefix: str = "") -> Self:
        """Return the network with these weights.

        Parameters
        ----------
        tensors
            float32 weights by name, as torch's ``state_dict`` has them. Those of a world (``world`` and
            ``PREFIX.world.weight``), if there are any, become a part of the embedding's bias.
        heads
            Names of the layers whose outputs are wanted, one after the other.
        prefix
            Begins the names of embedding, blocks and norm.

        Raises
        ------
        InputError
            If weights are missing or do not fit together.
        """
        try:
            embed = Linear.of(tensors, f"{prefix}embed")
            blocks: list[_Block] = []
            if "world" in tensors:
                position = np.append(tensors["world"], np.float32(1.0))
                embed = Linear(embed.weight, embed.bias + tensors[f"{prefix}world.weight"] @ position)
            while f"{prefix}blocks.{len(blocks)}.norm.weight" in tensors:
                name = f"{prefix}blocks.{len(blocks)}"
                scale, shift = _norm_of(tensors, f"{name}.norm")
                widen, narrow = (Linear.of(tensors, f"{name}.{part}") for part in ("widen", "narrow"))
                blocks.append(_Block(scale, shift, widen, narrow))
            ends = [Linear.of(tensors, name) for name in heads]
            head = Linear(
                np.ascontiguousarray(np.hstack([one.weight for one in ends])),
                np.concatenate([one.bias for one in ends]),
            )
            network = cls(embed, tuple(blocks), *_norm_of(tensors, f"{prefix}norm"), head)
            network(np.zeros((1, len(embed.weight)), np.float32))
        except (KeyError, ValueError) as error:
            raise InputError(f"these weights are no residual network: {error}") from None
        return network

    def __call__(self, inputs: np.ndarray) -> np.ndarray:
        """Return (n, outputs) float32 of inputs (n, n_inputs) float32, in batches of fixed borders."""
        width, hidden = self.embed.weight.shape[1], max([block.widen.weight.shape[1] for block in self.blocks] or [1])
        x, y, normed = (np.empty((AT_ONCE, width), np.float32) for _ in range(3))
        wide = np.empty((AT_ONCE, hidden), np.float32)
        out = np.empty((len(inputs), len(self.heads.bias)), np.float32)
        for start in range(0, len(inputs), AT_ONCE):
            events = inputs[start : start + AT_ONCE]
            n = len(events)
            np.matmul(events, self.embed.weight, out=x[:n])
            x[:n] += self.embed.bias
            for block in self.blocks:
                normalise(x[:n], block.scale, block.shift, normed[:n])
                h = wide[:n, : len(block.widen.bias)]
                np.matmul(normed[:n], block.widen.weight, out=h)
                gelu(h, block.widen.bias)
                np.matmul(h, block.narrow.weight, out=y[:n])
                _add(x[:n], y[:n], block.narrow.bias)
            normalise(x[:n], self.scale, self.shift, normed[:n])
            np.matmul(normed[:n], self.heads.weight, out=out[start : start + n])
            out[start : start + n] += self.heads.bias
        return out


def read_tensors(file: Path) -> dict[str, np.ndarray]:
    """Return the arrays of a safetensors file."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        return dict(load_file(file))
    except (SafetensorError, OSError, ValueError) as error:
        raise InputError(f"{file} cannot be read: {' '.join(str(error).split())[:160]}") from None
