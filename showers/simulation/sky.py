"""A known sky for simulated measurements: fluxes of five groups and of photons, and what the array went through.

Each group has a broken power law, dJ/dE = J (E/PeV)^-index [1 + (E/knee)^sharpness]^((index - index_above)/sharpness)
with its knee at rigidity times charge, unless a table of its own in the TOML file says otherwise.
"""

from __future__ import annotations

import difflib
import hashlib
import math
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field, ValidationError, model_validator

from showerstack.runtime.errors import InputError
from showerstack.runtime.files import kind_of, read_toml
from showerstack.runtime.stated import problem_of
from showerstack.showers.kascade import CHARGES, CORE_RADIUS_M, MASS_NUMBERS
from showerstack.showers.schema import COMPOSITION
from showerstack.showers.simulation.primaries import PHOTON, Primaries, model_shares, throw_cores
from showerstack.showers.simulation.settings import NotNegative, Positive, SettingsSection, Share

CHARGE_OF = dict(zip(COMPOSITION.classes, CHARGES, strict=True))
ABUNDANCES = dict(zip(COMPOSITION.classes, (0.30, 0.30, 0.17, 0.12, 0.11), strict=True))
"""Shares of the groups at 1 PeV where the file says nothing [g]."""
PEV_LG_EV = 15.0
TABLE_STEP = 0.0005
"""Step in lg E of the table from which energies are drawn."""


class GroupFlux(SettingsSection):
    """Flux of one mass group; what is left out follows from the whole sky's values."""

    abundance: NotNegative | None = Field(default=None, description="share of the nuclei's flux at 1 PeV")
    index: Positive | None = Field(default=None, description="spectral index below the knee")
    index_above: Positive | None = Field(default=None, description="spectral index above it")
    knee_pev: Positive | None = Field(default=None, description="its energy, PeV")
    sharpness: Positive | None = Field(default=None, description="how sharp the knee is")


class Sky(SettingsSection):
    """Everything that a simulated measurement depends on, but for its seed."""

    runs: int = Field(default=2, ge=1, le=100_000, description="number of runs")
    live_time_h: Positive = Field(default=1.0, description="live time of a run, hours")
    start: datetime = Field(default=datetime(2000, 1, 1, tzinfo=UTC), description="start of the first run")
    pause_h: NotNegative = Field(default=0.5, description="time between two runs, hours")
    world: str = Field(default="default", description="simulated world: a name, or a TOML file beside this one")
    model: str = Field(default="qgs", description="hadronic model, or mix")
    cuts: str = Field(default="none", pattern="^(none|test|matched)$", description="selection of what is written")
    # All particles by LHAASO, Physical Review Letters 132 (2024) 131002: 2.99e-21 (EPOS-LHC) to 3.12e-21 (QGSJet).
    flux_1_pev: Positive = Field(default=3.0e-21, description="of all nuclei at 1 PeV, m^-2 sr^-1 s^-1 eV^-1")
    lg_energy_min: float = Field(default=14.5, ge=13.0, le=18.5, description="lower end of lg(E/eV)")
    lg_energy_max: float = Field(default=18.0, ge=13.0, le=18.5, description="upper end")
    index: Positive = Field(default=2.7, description="spectral index below the knee")
    index_above: Positive = Field(default=3.1, description="spectral index above it")
    knee_pev: Positive = Field(default=4.4, description="energy of the protons' knee, PeV; others' times charge")
    sharpness: Positive = Field(default=10.0, description="how sharp the knees are")
    groups: dict[Annotated[str, Field(pattern=f"^({'|'.join(CHARGE_OF)})$")], GroupFlux] = Field(
        default={}, description="what is different for a group"
    )
    photon_fraction: Share = Field(default=0.0, description="photons per nucleus at the same energy")
    zenith_max_deg: float = Field(default=42.0, gt=0.0, lt=80.0, description="sin^2(zenith) uniform up to here")
    core_radius_m: Positive = Field(default=CORE_RADIUS_M, description="cores uniform in a disc of this radius")
    dead_stations: NotNegative = Field(default=0.0, description="mean number of dead stations, others in each run")
    dead_muon_detectors: NotNegative = Field(default=0.0, description="the same for muon detectors alone")
    deposit_drift: float = Field(
        default=0.0, gt=-0.5, lt=0.5, description="relative change of the deposits from the first to the last run"
    )

    @model_validator(mode="after")
    def _ordered(self) -> Sky:
        if self.lg_energy_max <= self.lg_energy_min:
            raise ValueError(f"lg_energy_max must be above lg_energy_min = {self.lg_energy_min}")
        if not self.abundances.sum() > 0:
            raise ValueError("the abundances must not all be zero")
        return self

    @cached_property
    def abundances(self) -> np.ndarray:
        """(5,) shares of the groups at 1 PeV, as given (they need not sum to 1)."""
        groups = {name: self.groups.get(name, GroupFlux()) for name in CHARGE_OF}
        return np.array([ABUNDANCES[name] if g.abundance is None else g.abundance for name, g in groups.items()])

    def knees_pev(self) -> np.ndarray:
        """Return the energies of the groups' knees, (5,) PeV."""
        given = [self.groups.get(name, GroupFlux()).knee_pev for name in CHARGE_OF]
        return np.array(
            [
                z * self.knee_pev if given_pev is None else given_pev
                for z, given_pev in zip(CHARGE_OF.values(), given, strict=True)
            ]
        )

    def flux(self, lg_energy: np.ndarray) -> np.ndarray:
        """Return the differential fluxes, (6, n) m^-2 sr^-1 s^-1 eV^-1: the five groups, then photons.

        Parameters
        ----------
        lg_energy
            (n,) lg(E/eV).
        """
        rows = []
        lg_pev = np.asarray(lg_energy, dtype=np.float64) - PEV_LG_EV
        for k, (name, knee) in enumerate(zip(CHARGE_OF, self.knees_pev(), strict=True)):
            group = self.groups.get(name, GroupFlux())
            index = group.index or self.index
            bend, sharp = (group.index_above or self.index_above) - index, group.sharpness or self.sharpness
            softened = np.logaddexp(0.0, sharp * math.log(10.0) * (lg_pev - math.log10(knee))) / sharp
            rows.append(
                self.flux_1_pev * self.abundances[k] * np.exp(-index * math.log(10.0) * lg_pev - bend * softened)
            )
        rows.append(self.photon_fraction * np.sum(rows, axis=0))
        return np.array(rows)

    @property
    def acceptance_m2_sr(self) -> float:
        """Area times solid angle of what is thrown, for a flat array: A pi sin^2(zenith_max)."""
        return math.pi**2 * self.core_radius_m**2 * math.sin(math.radians(self.zenith_max_deg)) ** 2

    def digest(self) -> str:
        """Return a short hash of all values."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Thrower:
    """Draws primaries of a sky."""

    sky: Sky

    @cached_property
    def _table(self) -> tuple[np.ndarray, np.ndarray]:
        """Borders in lg E, and for each kind of primary the integral flux below them, (6, n) m^-2 sr^-1 s^-1."""
        n = round((self.sky.lg_energy_max - self.sky.lg_energy_min) / TABLE_STEP) + 1
        edges = np.linspace(self.sky.lg_energy_min, self.sky.lg_energy_max, n + 1)
        middle = (edges[1:] + edges[:-1]) / 2
        counts = self.sky.flux(middle) * 10.0**middle * np.log(10.0) * np.diff(edges)
        return edges, np.concatenate([np.zeros((len(counts), 1)), np.cumsum(counts, axis=1)], axis=1)

    @property
    def rate_hz(self) -> float:
        """Primaries thrown per second of live time."""
        return float(self._table[1][:, -1].sum() * self.sky.acceptance_m2_sr)

    def throw(self, n: int, rng: np.random.Generator) -> Primaries:
        """Throw ``n`` primaries; the label of a photon is -1."""
        edges, below = self._table
        totals = below[:, -1]
        kind = np.searchsorted(np.cumsum(totals) / totals.sum(), rng.random(n), side="right")
        kind = np.minimum(kind, np.flatnonzero(totals)[-1])
        share, lg_energy = rng.random(n), np.empty(n)
        for k in np.unique(kind):
            mine = kind == k
            lg_energy[mine] = np.interp(share[mine] * totals[k], below[k], edges)
        u_model, u_zenith, u_azimuth = rng.random((3, n))
        shares = model_shares(COMPOSITION, self.sky.model)
        core_x_m, core_y_m = throw_cores(n, self.sky.core_radius_m, rng)
        sine = math.sin(math.radians(self.sky.zenith_max_deg))
        return Primaries(
            mass=np.append(MASS_NUMBERS, PHOTON)[kind],
            label=np.append(np.arange(len(MASS_NUMBERS)), -1)[kind].astype(np.int8),
            model=np.searchsorted(np.cumsum(shares), u_model, side="right").astype(np.int8),
            lg_energy=lg_energy,
            zenith_deg=np.degrees(np.arcsin(sine * np.sqrt(u_zenith))),
            azimuth_deg=360.0 * u_azimuth,
            core_x_m=core_x_m,
            core_y_m=core_y_m,
        )


def _suggestion(place: tuple[int | str, ...]) -> str:
    """Return what a name that a sky does not have was meant to be."""
    place = tuple(part for part in place if part != "[key]")
    levels = (Sky.model_fields, CHARGE_OF, GroupFlux.model_fields)
    known = levels[min(len(place), 3) - 1] if place[:1] == ("groups",) else Sky.model_fields
    near = difflib.get_close_matches(str(place[-1]), known, 1, 0.5) if place and place[-1] not in known else []
    return f": did you mean {near[0]}?" if near else ""


def load_sky(path: Path) -> Sky:
    """Read a sky from a TOML file; what it leaves out has the value of :class:`Sky`."""
    path = Path(path)
    if not path.is_file():
        what = f"is {kind_of(path)}" if path.exists() else "does not exist"
        raise InputError(f"{path} {what}: expected a TOML file of fluxes")
    content = read_toml(path)
    try:
        sky = Sky.model_validate(content)
        model_shares(COMPOSITION, sky.model)
    except ValidationError as error:
        raise InputError(f"{path}: {problem_of(error)}{_suggestion(error.errors()[0]['loc'])}") from None
    beside = path.parent / sky.world
    return sky.model_copy(update={"world": str(beside)}) if beside.is_file() else sky
