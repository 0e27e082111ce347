"""Options of the analyses of measured events, each declared once: the commands are made from them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from showerstack.analysis.blinding import Blinding
from showerstack.runtime.errors import InputError
from showerstack.runtime.options import Limits, OptionGroup, refuse_wrong

if TYPE_CHECKING:
    import numpy as np

ZENITH = Limits(gt=0, le=60)
EXPOSURE_ERROR = 0.05
"""Relative error of an exposure of which nothing else is said: an assumption."""


@dataclass(frozen=True)
class Widths(OptionGroup):
    """Widths of nuisances, one standard deviation; a scale of width 0 is exact."""

    lg_energy: Annotated[float, "--energy-scale", Limits(0)] = 0.04
    """Uncertainty of the energy scale, in lg E: 0.04 are 10 %."""
    lg_muon: Annotated[float, "--muon-scale", Limits(0)] = 0.02
    """Uncertainty of the muon number scale, in lg Nmu: 0.02 are 5 %."""
    lg_electron: Annotated[float, "--electron-scale", Limits(0)] = 0.02
    """The same of the electron number, in lg Ne."""

    @property
    def values(self) -> np.ndarray:
        """(3,) of energy, muon and electron number."""
        import numpy as np

        return np.array([self.lg_energy, self.lg_muon, self.lg_electron])


@dataclass(frozen=True)
class MeasurementOptions(OptionGroup):
    """What every measurement with a run and an exposure is asked with."""

    run: Path
    """Finished run: of composition for spectra, of gamma for photons."""
    data: list[Path]
    """Measured events: a dataset folder or a folder of runs; may be repeated."""
    exposure: str | None = None
    """Area times solid angle times live time, m2 sr s, such as 6.7e11; default: of the runs' own live time."""
    exposure_error: Annotated[float, Limits(0, 1)] = field(default=EXPOSURE_ERROR, kw_only=True)
    """Relative error of the exposure, common to all fluxes and limits."""
    dead_time_s: Annotated[float, "--dead-time", Limits(0)] = field(default=0.0, kw_only=True)
    """Seconds after each event without another one, for the runs' live time."""
    blinding: Blinding = field(default_factory=Blinding, kw_only=True)
    seed: Annotated[int, Limits(0)] = field(default=1, kw_only=True)
    """Seed of all random numbers."""


@dataclass(frozen=True)
class SpectraOptions(MeasurementOptions):
    """What is asked for of spectra."""

    out: Path = Path("spectra")
    """Folder for tables and provenance."""
    simulation: list[Path] | None = None
    """Labelled simulated set, not trained on, for the response; default: held-out events."""
    edges: Annotated[tuple[float, ...], "--bins"] = (15.2, 15.5, 15.8, 16.2, 16.8)
    """Bin edges of lg(E/eV)."""
    zenith_max_deg: Annotated[float, "--zenith-max", ZENITH] = 18.0
    """Largest zenith angle (degrees), as in the exposure."""
    widths: Widths = field(default_factory=Widths)
    knee_sharpness: Annotated[float, Limits(0.5, 100)] = 5.0
    """How sharp knees are."""
    stability: bool = False
    """Also fit halves of runs and zenith angles, and other cells."""


@dataclass(frozen=True)
class SearchOptions(MeasurementOptions):
    """What is asked for of a search for photons."""

    out: Path = Path("gamma_limit")
    """Folder for tables, provenance and page."""
    simulation: Path | None = None
    """Labelled simulated set, not trained on; default: the run's held-out events."""
    edges: Annotated[tuple[float, ...], "--bins"] = (14.8, 15.0, 15.25, 15.5, 15.75, 16.0, 16.5, 17.0)
    """Bin edges of lg(E/eV)."""
    zenith_max_deg: Annotated[float, "--zenith-max", ZENITH] = 30.0
    """Largest zenith angle (degrees), as in the exposure."""
    level: Annotated[float, Limits(0.5, lt=1)] = 0.9
    """Confidence level."""
    efficiency: Annotated[float | None, Limits(gt=0, lt=1)] = None
    """Share of photons above the threshold; default: of the best expected limit."""
    index: Annotated[float, Limits(gt=1, lt=5)] = 2.7
    """Spectral index assumed for the photons."""
    toys: Annotated[int, Limits(100)] = 1000
    """Experiments drawn for each signal that is tried; fewer make limits chance."""


@dataclass(frozen=True)
class SkyOptions(OptionGroup):
    """What is asked for of a map of the sky."""

    data: list[Path]
    """Dataset folder with event times, or folder of runs; may be given several times."""
    out: Path = Path("sky_map")
    """Folder for the map, its picture and provenance."""
    zenith_max_deg: Annotated[float, "--zenith-max", ZENITH] = 30.0
    """Largest zenith angle (degrees)."""
    nside: Annotated[int, Limits(1)] = 32
    """HEALPix resolution: 32 are pixels of 1.8 degrees, 64 of 0.9."""
    scrambles: Annotated[int, Limits(2)] = 20
    """How often times are exchanged for the exposure."""
    window_h: Annotated[float, "--window", Limits(0.5)] = 24.0
    """Times are exchanged within about so many hours."""
    azimuth_of_north: float | None = None
    """Stored azimuth of showers from the north (degrees); default: as found."""
    clockwise: Annotated[bool | None, "--clockwise/--anticlockwise"] = None
    """Azimuths grow from north over east, or over west."""
    run: Path | None = None
    """Gamma run: map only events with the highest scores."""
    share: Annotated[float, Limits(gt=0, le=1)] = 0.01
    """With --run: share of the events that is kept."""
    blinding: Blinding = field(default_factory=Blinding)
    seed: Annotated[int, Limits(0)] = 1
    """Seed of all random numbers."""

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_wrong("--azimuth-of-north", self.azimuth_of_north, float | None, [Limits(-360, 360)])
        if self.nside & (self.nside - 1) or self.nside > 1024:
            raise InputError(f"--nside {self.nside}: give a power of two up to 1024, such as 32 (1.8 degrees)")
