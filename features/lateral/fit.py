"""What a lateral fit gives: one record of float32 an event, laid out once for compiled kernel, GPU and features.

Steps, the same in both kernels (:mod:`features.lateral.compiled.minimise` and ``kernel.cu``):

1. Start: core at the centroid of density^1.5, best of three ages by deviance, muon level from counts beyond 40 m.
2. Freeze the electron channel at the start; minimise over (core, L, s) to a coarse tolerance.
3. Freeze the muon channel there; minimise over (M, s_mu).
4. Freeze the electron channel at both fits; minimise to the fine tolerance.
5. Freeze the muon channel again; minimise to the fine tolerance.

Levenberg-Marquardt per event: a step solves (H + damping diag I) d = -g with Fisher's matrix I; it is taken if F does
not rise. The damping follows the ratio of the decrease to the expected one. H is I as long as its steps are good. I
can be too small by more than half, where a bright station near the core misses its expectation, and its steps then
jump from one side of the minimum to the other for ever: once a step was poor (the damping is above its first value),
H is the Hessian with the second derivatives of ln(signal), wherever that is safely positive definite. An event has
converged when the decrement g H^-1 g, twice the decrease still to be expected of F, is below the tolerance.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Self

import numpy as np

SIZES = {
    "electron": 4,
    "electron_fisher": 10,
    "electron_value": 1,
    "electron_steps": 1,
    "electron_converged": 1,
    "muon": 2,
    "muon_fisher": 3,
    "muon_value": 1,
    "muon_steps": 1,
    "muon_converged": 1,
}
"""Numbers in each field of :class:`RawFit`, in the order of the record."""
N_NUMBERS = sum(SIZES.values())
RECORD = np.dtype([(name, np.float32, (size,) if size > 1 else ()) for name, size in SIZES.items()])


def record_in_c() -> str:
    """Return the record as a declaration in C."""
    members = " ".join(f"{name}[{size}];" if size > 1 else f"{name};" for name, size in SIZES.items())
    return f"struct RawFit {{ float {members.replace('; ', '; float ')} }};"


@dataclass(frozen=True)
class RawFit:
    """Minima of both fits; arrays (n,) float32, NaN where an event was not fitted."""

    electron: list[Any]
    """core x, core y (m), L, s."""
    electron_fisher: list[Any]
    """Lower triangle of the 4 x 4 Fisher matrix at the minimum."""
    electron_value: Any
    """Half deviance at the minimum, priors included."""
    electron_steps: Any
    electron_converged: Any
    """1 or 0."""
    muon: list[Any]
    """M, s_mu."""
    muon_fisher: list[Any]
    muon_value: Any
    muon_steps: Any
    muon_converged: Any

    @classmethod
    def from_numbers(cls, numbers: Any) -> Self:
        """Return the fits from records seen as plain numbers, (n, 25) float32 of any array library."""
        start, parts = 0, {}
        for name, size in SIZES.items():
            columns = [numbers[:, k] for k in range(start, start + size)]
            parts[name] = columns if size > 1 else columns[0]
            start += size
        return cls(**parts)

    def columns(self) -> list[Any]:
        """Return all numbers of the record as arrays (n,)."""
        values = [getattr(self, field.name) for field in fields(self)]
        return [column for value in values for column in (value if isinstance(value, list) else [value])]

    def records(self) -> np.ndarray:
        """Return (n,) records of type :data:`RECORD` of fits on the CPU."""
        return np.stack(self.columns(), axis=1).astype(np.float32).view(RECORD)[:, 0]
