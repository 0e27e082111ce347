"""Every constant of the simulated world, validated, with its origin; readable from TOML.

Origins: [p] published, [m] cascade Monte Carlo (see :mod:`showerstack.showers.simulation.cascade`), [f] fitted by
``benchmarks/world/calibrate.py`` so that the simulation reproduces known facts of the real data, [g] guess.
Where a field's value in ``worlds/default.toml`` differs from the default here, the file holds the fitted one.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from showerstack.runtime.errors import InputError
from showerstack.runtime.files import read_toml
from showerstack.runtime.options import Place
from showerstack.runtime.stated import problem_of
from showerstack.showers.kascade import CORE_RADIUS_M
from showerstack.showers.lateral import (
    ELECTRON_ALPHA,
    ELECTRON_BETA,
    MAX_ELECTRON_AGE,
    MUON_ALPHA,
    MUON_BETA,
    MUON_R0_M,
)  # fmt: skip

WORLDS = ("default", "harder", "easier", "gammas")

Share = Annotated[float, Field(ge=0.0, le=1.0)]
Positive = Annotated[float, Field(gt=0.0)]
NotNegative = Annotated[float, Field(ge=0.0)]


class SettingsSection(BaseModel):
    """Base of the sections: immutable, unknown names refused, no infinities."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Spectrum(SettingsSection):
    """What is generated, and where."""

    index: Positive = Field(default=2.0, description="dN/dE ~ E^-index [p]")
    lg_energy_min: float = Field(default=14.0, ge=13.0, le=18.5, description="lower end of lg(E/eV) [p]")
    lg_energy_max: float = Field(default=18.0, ge=13.0, le=18.5, description="upper end of lg(E/eV) [p]")
    low_share: Share = Field(
        default=0.575, description="composition sets: share generated only up to low_lg_energy_max [f]"
    )
    low_lg_energy_max: float = Field(default=16.0, ge=13.0, le=18.5, description="upper end of that share [f]")
    high_share: Share = Field(
        default=0.0, description="composition sets: share generated only above high_lg_energy_min [f]"
    )
    high_lg_energy_min: float = Field(default=14.6, ge=13.0, le=18.5, description="lower end of that share [f]")
    hadron_zenith_max_deg: float = Field(
        default=42.0, gt=0.0, lt=80.0, description="sin^2(zenith) uniform up to here [p]"
    )
    photon_zenith_max_deg: float = Field(default=60.0, gt=0.0, lt=80.0, description="the same for photons [p]")
    core_radius_m: Positive = Field(default=CORE_RADIUS_M, description="cores uniform in a disc of this radius [p]")
    protons_per_photon: Positive = Field(default=16.0, description="gamma sets, before the trigger [f]")
    photon_zenith_power: Positive = Field(
        default=1.0, description="photons: sin^2(zenith) of a uniform number to this power [f]"
    )
    photon_hard_share: Share = Field(default=0.033, description="photons generated with the hard spectrum [f]")
    photon_hard_lg_energy_min: float = Field(default=15.9, ge=13.0, le=18.5, description="its lower end [f]")
    photon_hard_slope: float = Field(default=-1.0, description="its dN/dlgE ~ E^slope, that of all others [g]")
    contamination: Share = Field(
        default=0.0027,
        description="gamma sets: protons with the gamma label; 75 to 107 of 1,514 real test photons look like hadrons "
        "and follow their spectrum [deduced]",
    )

    @model_validator(mode="after")
    def _ordered(self) -> Spectrum:
        if self.high_lg_energy_min >= self.lg_energy_max:
            raise ValueError("high_lg_energy_min must be below lg_energy_max")
        for name in ("low_lg_energy_max", "lg_energy_max"):
            if getattr(self, name) <= self.lg_energy_min:
                raise ValueError(f"{name} must be above lg_energy_min = {self.lg_energy_min}")
        if self.photon_hard_lg_energy_min >= self.lg_energy_max:
            raise ValueError("photon_hard_lg_energy_min must be below lg_energy_max")
        return self


class Cascade(SettingsSection):
    """Scales and offsets that place the cascade Monte Carlo's closed form on the real data."""

    xmax_scale: NotNegative = Field(default=0.67, description="times the fluctuation of Xmax, z [f]")
    muon_scale: NotNegative = Field(default=0.93, description="times the fluctuation of lg Nmu, h [f]")
    size_scale: NotNegative = Field(default=0.58, description="times the residual fluctuation of lg Ne, r [f]")
    fluctuation_mass: float = Field(
        default=0.0,
        description="exponent in A of these three: how much more nuclei fluctuate [f]",
    )
    lg_ne_offset: float = Field(default=0.062, description="lg Ne of the Monte Carlo to that of the detector [f]")
    lg_ne_mass: float = Field(default=0.054, description="its slope in lg A - 0.9 [f]")
    lg_ne_energy: float = Field(default=-0.031, description="its slope in lg(E/eV) - 15.2 [f]")
    lg_ne_inclination: float = Field(default=0.0, description="its slope in sec(zenith) - 1 [f]")
    lg_ne_curvature: float = Field(default=0.0, description="its slope in (lg(E/eV) - 15.2) squared [f]")
    lg_ne_mass_energy: float = Field(default=0.0, description="its slope in (lg A - 0.9) (lg(E/eV) - 15.2) [f]")
    lg_nmu_offset: float = Field(default=0.092, description="same for lg Nmu [f]")
    lg_nmu_mass: float = Field(default=0.029, description="its slope in lg A - 0.9 [f]")
    lg_nmu_energy: float = Field(default=-0.002, description="its slope in lg(E/eV) - 15.2 [f]")
    lg_nmu_inclination: float = Field(default=0.0, description="its slope in sec(zenith) - 1 [f]")
    lg_nmu_mass_energy: float = Field(default=0.0, description="its slope in (lg A - 0.9) (lg(E/eV) - 15.2) [f]")
    photon_lg_ne_offset: float = Field(
        default=0.051, description="photons: lg Ne of the Monte Carlo to the detector's [f]"
    )
    photon_lg_ne_inclination: float = Field(default=0.0, description="photons: its slope in sec(zenith) - 1 [f]")
    photon_lg_nmu_offset: float = Field(default=0.0, description="photons: same for lg Nmu, soft part [f]")
    photon_muon_spread: NotNegative = Field(default=0.0, description="photons: further Gaussian spread of lg Nmu [f]")
    photonuclear_scale: NotNegative = Field(
        default=1.0, description="photons: times the Monte Carlo's rate of hard photonuclear interactions [f]"
    )
    photon_age_offset: float = Field(default=0.0, description="photons: added to the longitudinal age [f]")
    proton_tail: Share = Field(
        default=0.0,
        description="protons: share of what the scales take from the Monte Carlo's tails to deep Xmax, large sizes "
        "and few muons that is given back: 1 narrows the core alone [f]",
    )
    electron_loss_min: float = Field(
        default=-100.0,
        description="protons: h below counts as this in lg Ne, muon-poor ones keep electrons [f]",
    )
    hadronic_front: NotNegative = Field(
        default=0.0,
        description="protons: the longitudinal age is a photon's but for a share 10^(hadronic_front (h + 0.2)); "
        "0: a proton's always [f]",
    )
    epos_xmax: float = Field(default=8.0, description="EPOS-LHC: shift of Xmax, g/cm2 [f]")
    epos_lg_ne: float = Field(default=0.0, description="EPOS-LHC: shift of lg Ne beside that of Xmax [f]")
    epos_lg_nmu: float = Field(default=0.015, description="EPOS-LHC: shift of lg Nmu [f]")
    epos_lg_nmu_mass: float = Field(default=0.0, description="EPOS-LHC: its slope in lg A - 0.9 [f]")
    sibyll_xmax: float = Field(default=12.0, description="SIBYLL 2.3c: shift of Xmax, g/cm2 [g]")
    sibyll_lg_nmu: float = Field(default=0.03, description="SIBYLL 2.3c: shift of lg Nmu [g]")


class Shape(SettingsSection):
    """Lateral shapes of the shower."""

    electron_r0_m: Positive = Field(default=38.7, description="scale radius of the electrons [f]")
    electron_alpha: float = Field(
        default=ELECTRON_ALPHA, description="exponent of their form near the axis; another form is as steep at 40 m [p]"
    )
    electron_beta: float = Field(default=ELECTRON_BETA, description="the same far away [p]")
    electron_curvature: float = Field(
        default=0.0, description="densities times exp(-curvature ln^2(r / 100 m)), a parabola in double logarithms [g]"
    )
    muon_r0_m: Positive = Field(default=MUON_R0_M, description="scale radius of the muons [p]")
    muon_alpha: float = Field(
        default=MUON_ALPHA, description="exponent of their form near the axis; another form is as steep at 200 m [p]"
    )
    muon_beta: float = Field(default=MUON_BETA, description="the same far away [p]")
    age_offset: float = Field(default=0.970, description="lateral age of the mean shower [f]")
    age_longitudinal: float = Field(default=0.925, description="slope in the longitudinal age - 1.31 [f]")
    age_depth: float = Field(default=0.0467, description="slope in (X - Xmax - 480)/100 g/cm2 [f]")
    age_energy: float = Field(default=-0.042, description="slope in lg(E/eV) - 15.2 [f]")
    age_inclination: float = Field(default=0.0, description="slope in sec(zenith) - 1 [f]")
    age_mass: float = Field(default=0.0, description="slope in lg A - 0.9 [f]")
    age_spread: NotNegative = Field(default=0.054, description="Gaussian spread [f]")
    age_min: float = Field(default=0.3, gt=-0.5, description="lower limit of the lateral age [g]")
    age_max: float = Field(default=1.5, description="upper limit; at 1.55 the density has no finite integral [p]")
    muon_age_offset: float = Field(default=0.130, description="true muon age above the reconstruction's mean [f]")
    muon_age_inclination: float = Field(default=0.0, description="its slope in sec(zenith) - 1 [f]")
    muon_age_depth: float = Field(default=0.0, description="its slope in (X - Xmax - 480)/100 g/cm2 [f]")
    muon_age_spread: NotNegative = Field(default=0.042, description="its Gaussian spread [f]")
    muon_age_min: Positive = Field(default=0.8, description="lower limit of the muon age [g]")
    muon_age_max: float = Field(default=1.7, lt=2.25, description="upper limit of the muon age [g]")
    clump_sigma: NotNegative = Field(
        default=0.055, description="rms azimuthal density fluctuation, proton at lg E = 14.5 [m]"
    )
    clump_slope: float = Field(default=-0.72, description="its slope in lg E (10^slope a decade) [m]")
    clump_iron_factor: NotNegative = Field(default=2.2, description="iron over proton at the same energy [m]")

    @model_validator(mode="after")
    def _finite_integral(self) -> Shape:
        if self.age_max >= MAX_ELECTRON_AGE:
            raise ValueError(f"age_max = {self.age_max} must be below {MAX_ELECTRON_AGE}, where the density diverges")
        if self.age_min >= self.age_max or self.muon_age_min >= self.muon_age_max:
            raise ValueError("lower limits of the shapes must be below the upper ones")
        return self


class Detector(SettingsSection):
    """Response of a station. Energies in MeV."""

    electron_mev: Positive = Field(
        default=8.45, description="deposit per vertical particle in the e/gamma detector [f]"
    )
    electron_shape: Positive = Field(default=0.722, description="Gamma shape per electron [f]")
    muon_in_electron_shape: Positive = Field(
        default=5.0, description="Gamma shape per muon in the e/gamma detector [f]"
    )
    photon_share: NotNegative = Field(
        default=0.269, description="deposit of accompanying photons per electron's, far away [f]"
    )
    photon_share_core: NotNegative = Field(default=1.302, description="the same, added on the axis [f]")
    photon_core_m: Positive = Field(default=8.46, description="its exponential range [f]")
    electron_threshold_mev: NotNegative = Field(default=2.36, description="smaller deposits read 0 [f]")
    electron_stray: Share = Field(default=0.0176, description="probability of a stray particle per e/gamma station [f]")
    electrons_per_muon: NotNegative = Field(
        default=0.0, description="electrons that accompany a muon far from the core, per muon [f]"
    )
    electron_cap_mev: Positive = Field(default=40_000.0, description="saturation of the e/gamma detector [g]")
    muon_mev: Positive = Field(default=8.36, description="deposit per vertical muon in the muon detector [f]")
    muon_shape: Positive = Field(default=5.96, description="Gamma shape per muon [f]")
    muon_threshold_mev: NotNegative = Field(default=3.86, description="smaller deposits read 0 [f]")
    muon_stray: Share = Field(default=0.0060, description="probability of a stray muon per muon station [f]")
    muon_cap_mev: Positive = Field(default=20_000.0, description="saturation of the muon detector [g]")
    punch: NotNegative = Field(default=0.139, description="punch-through particles per electron on the axis [f]")
    punch_mass: float = Field(default=0.0, description="its exponent in A, hadrons [f]")
    punch_range_m: Positive = Field(default=15.3, description="its exponential range [f]")
    punch_mev: Positive = Field(default=12.0, description="mean of a punch-through particle's exponential deposit [f]")
    punch_photon: NotNegative = Field(default=0.35, description="the same in photon showers [f]")
    punch_photon_range_m: Positive = Field(default=7.0, description="its exponential range in photon showers [f]")
    punch_content: NotNegative = Field(
        default=0.0,
        description="protons: exponent in Nmu over its mean by which their punch-through beyond a photon's, and their "
        "clumps, follow the shower; 0: all alike [f]",
    )
    muon_overlap: Share = Field(
        default=0.0, description="share of the muons through a station's e/gamma detectors that its muon one sees [f]"
    )
    dead: Share = Field(default=0.0, description="probability that a station is dead for an event [g]")
    gain_spread: NotNegative = Field(
        default=0.0, description="standard deviation of ln(gain) of detectors, which calibration does not know [g]"
    )
    gain_seed: int = Field(default=1, ge=0, description="random number that these gains are drawn with")


class Trigger(SettingsSection):
    """When an event is recorded."""

    stations: int = Field(default=4, ge=1, le=16, description="hit e/gamma stations needed in one cluster of 4 x 4 [f]")
    lg_ne_min: float = Field(default=2.0, description="reconstructed lg Ne above [p]")
    lg_nmu_min: float = Field(
        default=2.0, description="reconstructed lg Nmu above [p]: without any counted muon there is no event [deduced]"
    )
    zenith_max_deg: Positive = Field(default=60.01, description="reconstructed zenith at most [p]")
    core_max_m: Positive = Field(default=95.0, description="reconstructed core at most this far from the centre [p]")


class Reconstruction(SettingsSection):
    """Errors and conventions of the standard reconstruction."""

    electron_r0_m: Positive = Field(default=40.0, description="scale radius it assumes [p]")
    core_m: NotNegative = Field(default=2.19, description="core error at 60 hit stations, per axis [f]")
    angle_deg: NotNegative = Field(default=0.35, description="angular error at 60 hit stations [g]")
    electron_r_min_m: NotNegative = Field(default=8.0, description="nearer e/gamma stations are left out [p]")
    muon_r_min_m: NotNegative = Field(default=40.0, description="nearer muon stations are left out [p]")
    lg_nmu_error: NotNegative = Field(
        default=0.0, description="further error of lg Nmu at lg Nmu = 4.5, falls with the root of the number [f]"
    )
    age_error: NotNegative = Field(
        default=0.0,
        description="further error of the age, which Ne follows, at lg Ne = 5; falls with the root of the number [f]",
    )
    muon_round: float = Field(default=0.15, description="added before the number of muons is rounded [f]")
    min_muons: Positive = Field(default=100.0, description="floor of the muon number [deduced]")
    muon_failure: Share = Field(default=0.0079, description="proton: probability of a failed muon number [f]")
    muon_failure_mass: float = Field(default=0.27, description="its exponent in A [f]")
    muon_loss: Share = Field(default=0.0, description="proton: probability that part of the muons is lost [f]")
    muon_loss_mass: float = Field(default=0.4, description="its exponent in A [f]")
    muon_loss_min: float = Field(default=0.3, description="least loss in lg Nmu [g]")
    muon_loss_max: float = Field(default=0.8, description="largest loss in lg Nmu [g]")


class Settings(SettingsSection):
    """The whole simulated world."""

    spectrum: Spectrum = Spectrum()
    cascade: Cascade = Cascade()
    shape: Shape = Shape()
    detector: Detector = Detector()
    trigger: Trigger = Trigger()
    reconstruction: Reconstruction = Reconstruction()

    def digest(self) -> str:
        """Return a short hash of all values."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()[:16]

    def changed(self, **values: Any) -> Settings:
        """Return a copy with some values replaced, named ``section__field``; validated anew."""
        content = self.model_dump()
        for name, value in values.items():
            section, _, field = name.partition("__")
            content[section][field] = value
        return validated(content, "changed settings")


def validated(content: dict[str, Any], origin: str) -> Settings:
    """Turn nested tables into settings."""
    try:
        return Settings.model_validate(content)
    except ValidationError as error:
        raise InputError(f"{origin}: {problem_of(error)}") from None


LARGEST_MEV = 65_504.0
"""The largest float16, as which the files of KASCADE's protocols store deposits."""


def refuse_large_caps(settings: Settings, origin: str) -> None:
    """Refuse saturation above what KASCADE's files hold."""
    for name in ("electron_cap_mev", "muon_cap_mev"):
        if (value := getattr(settings.detector, name)) > LARGEST_MEV:
            raise InputError(
                f"{origin}: detector.{name} {value:g}: at most {LARGEST_MEV:,.0f} MeV, the largest number of files of "
                "protocol v2; the card of an array may say more"
            )


def load_settings(world: Place = "default") -> Settings:
    """Return a named world, or the settings in a TOML file.

    Parameters
    ----------
    world
        ``default``, ``harder``, ``easier``, ``gammas``, or the path of a TOML file whose tables are the sections of
        :class:`Settings`; what it leaves out has the default world's value.
    """
    shipped = Path(__file__).parent / "worlds"
    base = read_toml(shipped / "default.toml")
    if world == "default":
        return validated(base, "worlds/default.toml")
    if world in WORLDS:
        path, name = shipped / f"{world}.toml", f"worlds/{world}.toml"
    else:
        path, name = Path(world), str(world)
        if not path.is_file():
            raise InputError(f"unknown world {name!r}: choose one of {', '.join(WORLDS)} or give a TOML file")
    changes = read_toml(path)
    merged = {key: dict(values) for key, values in base.items()}
    for section, values in changes.items():
        if not isinstance(values, dict):
            raise InputError(f"{name}: {section} must be a table")
        merged.setdefault(section, {}).update(values)
    settings = validated(merged, name)
    refuse_large_caps(settings, name)
    return settings
