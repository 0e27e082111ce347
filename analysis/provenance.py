"""What an analysis of measured events was made from: kept with its result, written as JSON, shown on its page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Self

from showerstack.analysis.exposure import Exposure
from showerstack.analysis.options import MeasurementOptions
from showerstack.runtime.code import git_revision, versions
from showerstack.showers.source import is_simulated, read_source
from showerstack.stacking.prediction.run import Run

HELD_OUT = "held-out events of the run"


def now() -> str:
    """Return date and time, UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


@dataclass(frozen=True)
class Provenance:
    """Run, data, exposure, cuts with the events left, versions and date."""

    run: str
    config_hash: str
    data: tuple[str, ...]
    data_fingerprints: tuple[str, ...]
    simulation: str | list[str]
    simulated_data: bool
    exposure: Exposure
    zenith_max_deg: float
    cut_flow: Mapping[str, int]
    """Measured events left after each cut."""
    blinding: Mapping[str, Any]
    seed: int
    events: Mapping[str, int] = field(default_factory=dict)
    """Numbers of events, by their names in files."""
    date: str = field(default_factory=now)

    @classmethod
    def of(
        cls, options: MeasurementOptions, run: Run, exposure: Exposure, zenith_max_deg: float,
        simulation: str | list[str], prints: Sequence[str], flow: Mapping[str, int],
        events: Mapping[str, int] | None = None,
    ) -> Self:  # fmt: skip
        """Return the provenance of a measurement; no name of a ``simulation``: held-out events of the run."""
        return cls(
            run=options.run.resolve().name, config_hash=run.chain.config_hash,
            data=tuple(folder.name for folder in options.data), data_fingerprints=tuple(prints),
            simulation=simulation or HELD_OUT,
            simulated_data=all(is_simulated(read_source(folder)) for folder in options.data), exposure=exposure,
            zenith_max_deg=zenith_max_deg, cut_flow=flow, blinding=options.blinding.as_json(options.data),
            seed=options.seed, events=events or {},
        )  # fmt: skip

    def as_json(self) -> dict[str, Any]:
        """Return what files keep."""
        return {
            "run": self.run,
            "config_hash": self.config_hash,
            "data_fingerprints": list(self.data_fingerprints),
            "simulation": self.simulation,
            "simulated_data": self.simulated_data,
            **self.exposure.as_json(self.zenith_max_deg),
            "zenith_max_deg": self.zenith_max_deg,
            "data": list(self.data),
            "cut_flow": dict(self.cut_flow),
            "blinding": dict(self.blinding),
            **self.events,
            "date": self.date,
            "seed": self.seed,
            "versions": versions(),
            "git_revision": git_revision(),
        }
