"""What goes to programs and data bases of others: HEPData, CRDB, event lists and limits for gammapy; and blinding."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from showerstack.analysis.blinding import Blinding
from showerstack.analysis.exchange import crdb_rows, write_exchange
from showerstack.analysis.fits import SkyEvents, write_limits_fits, write_sky_events
from showerstack.runtime.errors import InputError


@pytest.fixture
def spectra(tmp_path: Path) -> Path:
    """Two energies, two groups and their sum; iron's second bin is not used, a model error is unknown."""
    rows = []
    for low, used in ((15.0, True), (15.5, False)):
        for group, flux in (("proton", 2e-21), ("iron", 1e-21), ("all", 3e-21)):
            rows.append(
                {
                    "lg_energy_low_eV": low, "lg_energy_high_eV": low + 0.5, "energy_middle_eV": 2e15, "group": group,
                    "used": used, "flux_m2_sr_s_eV": flux if used else None,
                    "flux_error_data_m2_sr_s_eV": 3e-23, "flux_error_simulation_m2_sr_s_eV": 4e-23,
                    "flux_error_hadronic_model_m2_sr_s_eV": None if group == "iron" else 1e-22,
                    "flux_error_statistical_m2_sr_s_eV": 5e-23, "flux_error_total_m2_sr_s_eV": 1.1e-22,
                }
            )  # fmt: skip
    pl.DataFrame(rows, infer_schema_length=None).write_parquet(tmp_path / "spectra.parquet")
    covariance = np.diag([1e-45, 2e-45, np.nan, 4e-45])
    np.savez(tmp_path / "covariance.npz", flux_m2_sr_s_eV=np.zeros((2, 2)), flux_data_m2_sr_s_eV_squared=covariance)
    return tmp_path


def test_hepdata_holds_fluxes_errors_and_covariances(spectra: Path) -> None:
    files = {file.name for file in write_exchange(spectra)}
    assert {"submission.yaml", "flux_proton.yaml", "flux_all.yaml", "covariance_data.yaml", "crdb.csv"} <= files
    yaml = pytest.importorskip("yaml")
    head, *documents = yaml.safe_load_all((spectra / "hepdata" / "submission.yaml").read_text())
    assert "comment" in head
    for one in documents:
        assert len(one["name"]) <= 64
        assert (spectra / "hepdata" / one["data_file"]).exists()
    assert "Unknown in some bins: hadronic_model" in next(
        one["description"] for one in documents if "iron" in one["name"]
    )
    content = yaml.safe_load((spectra / "hepdata" / "flux_proton.yaml").read_text())
    first, second = content["dependent_variables"][0]["values"]
    assert first["value"] == 2e-21
    assert {one["label"]: one["symerror"] for one in first["errors"]} == {
        "stat,data": 3e-23, "stat,simulation": 4e-23, "sys,hadronic_model": 1e-22
    }  # fmt: skip
    assert second == {"value": "-"}, "a bin that is not used has no number"
    energies = content["independent_variables"][0]["values"]
    assert energies[0]["low"] == pytest.approx(1e15)
    matrix = json.loads((spectra / "hepdata" / "covariance_data.yaml").read_text())
    values = [one["value"] for one in matrix["dependent_variables"][0]["values"]]
    assert len(values) == 16
    assert values[0] == 1e-45
    assert values[10] == "-", "unknown is not 0"
    assert len(matrix["independent_variables"]) == 2


def test_crdb_rows_are_in_gev_and_have_all_errors(spectra: Path) -> None:
    rows = crdb_rows(pl.read_parquet(spectra / "spectra.parquet"), "KASCADE")
    assert rows["DATA-QTY"].to_list() == ["H", "AllParticles"], "iron's model error is unknown"
    row = rows.row(0, named=True)
    assert row["DATA-VAL"] == pytest.approx(2e-12)
    assert row["DATA-E_MEAN"] == pytest.approx(2e6)
    assert row["DATA-VAL_ERRSTAT_L"] == pytest.approx(5e-14)
    assert row["DATA-VAL_ERRSYST_U"] == pytest.approx(1e-13)


def _events() -> SkyEvents:
    n = 6
    seconds = 1_046_498_400.0 + np.array([5.0, 1.0, 2.0, 1000.0, 1001.0, 1003.0])
    run = np.array([0, 0, 0, 1, 1, 1])
    return SkyEvents(
        seconds, np.linspace(10, 60, n), np.linspace(30, 60, n), np.full(n, 20.0), np.linspace(0, 300, n),
        np.full(n, 15.3), run, np.arange(n),
    )  # fmt: skip


def test_events_are_written_as_gadf(tmp_path: Path) -> None:
    pytest.importorskip("astropy")
    from astropy.io import fits
    from astropy.time import Time

    write_sky_events(_events(), tmp_path / "events.fits", 5.0)
    with fits.open(tmp_path / "events.fits", checksum=True) as file:
        events, head = file["EVENTS"].data, file["EVENTS"].header
        assert (np.diff(events["TIME"]) > 0).all()
        first = Time(head["MJDREFI"] + head["MJDREFF"] + events["TIME"][0] / 86_400, format="mjd", scale="tt")
        assert first.utc.unix == pytest.approx(1_046_498_401.0, abs=1e-3), "leap seconds are counted"
        assert events["ENERGY"][0] == pytest.approx(10**3.3)
        assert events["RA"][0] == pytest.approx(20.0)
        assert head["LIVETIME"] == 5.0
        assert file["GTI"].data["STOP"][0] - file["GTI"].data["START"][0] == pytest.approx(4.0)
    write_sky_events(_events(), tmp_path / "unknown.fits", None)
    assert "LIVETIME" not in fits.getheader(tmp_path / "unknown.fits", "EVENTS"), "unknown is not 0"


def _limits() -> pl.DataFrame:
    return pl.DataFrame(
        {
            "range": ["bin", "bin", "above"],
            "lg_energy_low_eV": [15.0, 15.5, 15.0],
            "lg_energy_high_eV": [15.5, 16.0, 16.0],
            "limit_photons_m2_sr_s_eV": [1e-25, 2e-26, None],
        }
    )


def test_limits_are_written_as_flux_points(tmp_path: Path) -> None:
    pytest.importorskip("astropy")
    from astropy.table import Table

    assert write_limits_fits(_limits(), tmp_path / "limits.fits", 0.9)
    table = Table.read(tmp_path / "limits.fits")
    assert table["e_min"][0] == pytest.approx(1e3)
    assert table["dnde_ul"][0] == pytest.approx(1e-25 * 1e-4 * 1e12)
    assert table.meta["UL_CONF"] == 0.9
    unknown = _limits().with_columns(limit_photons_m2_sr_s_eV=pl.lit(None, pl.Float64))
    assert not write_limits_fits(unknown, tmp_path / "none.fits", 0.9)


@pytest.mark.filterwarnings("ignore")
def test_gammapy_opens_events_and_limits(tmp_path: Path) -> None:
    pytest.importorskip("gammapy", reason="gammapy is not installed: nothing to open the files with")
    from gammapy.data import GTI, EventList
    from gammapy.estimators import FluxPoints

    write_sky_events(_events(), tmp_path / "events.fits", 5.0)
    events = EventList.read(tmp_path / "events.fits")
    assert len(events.table) == 6
    assert events.radec.ra.deg[0] == pytest.approx(20.0)
    assert events.time[0].utc.unix == pytest.approx(1_046_498_401.0, abs=1e-3)
    assert GTI.read(tmp_path / "events.fits").time_sum.to_value("s") == pytest.approx(7.0)
    write_limits_fits(_limits(), tmp_path / "limits.fits", 0.9)
    points = FluxPoints.read(tmp_path / "limits.fits", sed_type="dnde", format="gadf-sed")
    assert points.dnde_ul.quantity.to_value("TeV-1 cm-2 s-1").ravel()[1] == pytest.approx(2e-18)


def test_runs_are_opened_by_their_names_alone(tmp_path: Path) -> None:
    folders = [tmp_path / f"{number:06d}" for number in range(4000, 6000)]
    blind = Blinding(0.185)
    chosen = blind.chosen(folders)
    assert len(chosen) == pytest.approx(0.185 * 2000, abs=60)
    assert blind.chosen(folders[::-1]) == chosen[::-1], "the order does not matter"
    assert set(Blinding(0.1).chosen(folders)) < set(chosen), "a larger share holds a smaller one"
    assert blind.as_json(chosen) == {
        "open_share": 0.185, "unblind": False, "open_runs": len(chosen), "runs_looked_at": len(chosen)
    }  # fmt: skip
    whole = Blinding(0.185, unblind=True)
    assert whole.chosen(folders) == folders
    assert whole.as_json(folders) == {
        "open_share": 0.185, "unblind": True, "open_runs": len(chosen), "runs_looked_at": 2000
    }  # fmt: skip
    shut = [folder for folder in folders if folder not in chosen]
    with pytest.raises(InputError, match=r"--open-share 0\.185: none of 3 runs is open"):
        blind.chosen(shut[:3])
    with pytest.raises(InputError, match="above 0 and at most 1"):
        Blinding(1.5).chosen(folders)
