"""The section of a page on what a measurement was made from."""

from __future__ import annotations

from showerstack.analysis.provenance import Provenance
from showerstack.report.shared.markup import Section, table

NAMED = 6
"""Folders that are named; of more, their number is given."""


def made_of(provenance: Provenance | None) -> list[Section]:
    """Return a section on what a page was made from: run, data, exposure, cuts with the events left, versions, date."""
    if provenance is None:
        return []
    stored, data = provenance.as_json(), provenance.data
    names = ", ".join(data) if len(data) <= NAMED else f"{', '.join(data[:NAMED])} and {len(data) - NAMED} more"
    of_live_time = stored.get("exposure_of_live_time_m2_sr_s")
    exposure = f"{stored['exposure_m2_sr_s']:.4g} m2 sr s ({stored['exposure_from']})"
    if of_live_time is not None and stored["exposure_from"] == "option":
        ratio = stored["exposure_m2_sr_s"] / of_live_time
        exposure += f", {ratio:.3g} times that of the runs' own live time, {of_live_time:.4g} m2 sr s"
    exposure += f", ± {100 * stored['exposure_relative_error']:.0f} % assumed, common to all energies"
    if of_live_time is not None:
        dead = stored["dead_time_s"]
        exposure += f"; dead time {f'of {dead:g} s an event' if dead else 'not'} subtracted from the live time"
    simulation = stored["simulation"]
    rows = [
        ("run", f"{stored['run']} ({stored['config_hash'][:12]})"),
        ("data", f"{names}{' (simulated)' if stored['simulated_data'] else ''}"),
        ("simulation", simulation if isinstance(simulation, str) else ", ".join(simulation)),
        ("exposure", exposure),
        ("zenith angle", f"below {stored['zenith_max_deg']:g} degrees"),
        *((f"events, {name}", f"{count:,}") for name, count in provenance.cut_flow.items()),
        ("versions", ", ".join(f"{name} {version}" for name, version in stored["versions"].items())),
        ("revision", stored["git_revision"] or "unknown"),
        ("date", stored["date"]),
    ]
    return [Section("made", "Made from", table(("", ""), rows, kind="wide"))]
