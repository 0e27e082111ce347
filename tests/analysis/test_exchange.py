"""What goes to programs and data bases of others: HEPData and CRDB; and blinding."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from showerstack.analysis.blinding import Blinding
from showerstack.analysis.exchange import crdb_rows, write_exchange
from showerstack.runtime.errors import InputError


@pytest.fixture
def spectra() -> pl.DataFrame:
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
    return pl.DataFrame(rows, infer_schema_length=None)


COVARIANCES = {"data": np.diag([1e-45, 2e-45, np.nan, 4e-45])}


def test_hepdata_holds_fluxes_errors_and_covariances(spectra: pl.DataFrame, tmp_path: Path) -> None:
    files = {file.name for file in write_exchange(tmp_path, spectra, COVARIANCES)}
    assert {"submission.yaml", "flux_proton.yaml", "flux_all.yaml", "covariance_data.yaml", "crdb.csv"} <= files
    yaml = pytest.importorskip("yaml")
    head, *documents = yaml.safe_load_all((tmp_path / "hepdata" / "submission.yaml").read_text())
    assert "comment" in head
    for one in documents:
        assert len(one["name"]) <= 64
        assert (tmp_path / "hepdata" / one["data_file"]).exists()
    assert "Unknown in some bins: hadronic_model" in next(
        one["description"] for one in documents if "iron" in one["name"]
    )
    content = yaml.safe_load((tmp_path / "hepdata" / "flux_proton.yaml").read_text())
    first, second = content["dependent_variables"][0]["values"]
    assert first["value"] == 2e-21
    assert {one["label"]: one["symerror"] for one in first["errors"]} == {
        "stat,data": 3e-23, "stat,simulation": 4e-23, "sys,hadronic_model": 1e-22
    }  # fmt: skip
    assert second == {"value": "-"}, "a bin that is not used has no number"
    energies = content["independent_variables"][0]["values"]
    assert energies[0]["low"] == pytest.approx(1e15)
    matrix = json.loads((tmp_path / "hepdata" / "covariance_data.yaml").read_text())
    values = [one["value"] for one in matrix["dependent_variables"][0]["values"]]
    assert len(values) == 16
    assert values[0] == 1e-45
    assert values[10] == "-", "unknown is not 0"
    assert len(matrix["independent_variables"]) == 2


# The validator leaves files open.
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_hepdatas_own_validator_takes_the_submission(spectra: pl.DataFrame, tmp_path: Path) -> None:
    validator = pytest.importorskip("hepdata_validator.full_submission_validator").FullSubmissionValidator()
    write_exchange(tmp_path, spectra, COVARIANCES)
    assert validator.validate(directory=str(tmp_path / "hepdata")), validator.get_messages()


def test_crdb_rows_are_in_gev_and_have_all_errors(spectra: pl.DataFrame) -> None:
    rows = crdb_rows(spectra, "KASCADE")
    assert rows["DATA-QTY"].to_list() == ["H", "AllParticles"], "iron's model error is unknown"
    row = rows.row(0, named=True)
    assert row["DATA-VAL"] == pytest.approx(2e-12)
    assert row["DATA-E_MEAN"] == pytest.approx(2e6)
    assert (row["DATA-E_BIN_L"], row["DATA-E_BIN_U"]) == pytest.approx((1e6, 10**6.5))
    assert row["DATA-VAL_ERRSTAT_L"] == pytest.approx(5e-14)
    assert row["DATA-VAL_ERRSYST_U"] == pytest.approx(1e-13)


def test_runs_are_opened_by_their_names_alone(tmp_path: Path) -> None:
    folders = [tmp_path / f"{number:06d}" for number in range(4000, 6000)]
    blind = Blinding(0.185)
    chosen = blind.open_folders(folders)
    assert len(chosen) == pytest.approx(0.185 * 2000, abs=60)
    assert blind.open_folders(folders[::-1]) == chosen[::-1], "the order does not matter"
    assert set(Blinding(0.1).open_folders(folders)) < set(chosen), "a larger share holds a smaller one"
    assert blind.as_json(chosen) == {
        "open_share": 0.185, "unblind": False, "open_runs": len(chosen), "runs_looked_at": len(chosen)
    }  # fmt: skip
    whole = Blinding(0.185, unblind=True)
    assert whole.open_folders(folders) == folders
    assert whole.as_json(folders) == {
        "open_share": 0.185, "unblind": True, "open_runs": len(chosen), "runs_looked_at": 2000
    }  # fmt: skip
    shut = [folder for folder in folders if folder not in chosen]
    with pytest.raises(InputError, match=r"--open-share 0\.185: none of 3 runs is open"):
        blind.open_folders(shut[:3])
    with pytest.raises(InputError, match="above 0 and of at most 1"):
        Blinding(1.5).open_folders(folders)


def test_fluxes_and_errors_survive_histograms_of_others(spectra: pl.DataFrame, tmp_path: Path) -> None:
    """Through boost-histogram, hist and ROOT as values with variances: what has none gets its value as one."""
    hist, uproot = pytest.importorskip("hist"), pytest.importorskip("uproot")
    iron = spectra.filter(pl.col("group") == "iron")
    edges = 10 ** np.append(iron["lg_energy_low_eV"], iron["lg_energy_high_eV"][-1])
    flux = iron["flux_m2_sr_s_eV"].fill_null(0).to_numpy()
    variance = iron["flux_error_total_m2_sr_s_eV"].to_numpy() ** 2
    made = hist.Hist(hist.axis.Variable(edges, name="E/eV"), storage=hist.storage.Weight())
    made[...] = np.column_stack([flux, variance])
    with uproot.recreate(tmp_path / "flux.root") as file:
        file["iron"] = made
    with uproot.open(tmp_path / "flux.root") as file:
        read = file["iron"]
        for one in (read, read.to_hist(), read.to_boost()):
            np.testing.assert_array_equal(one.values(), flux)
            np.testing.assert_allclose(one.variances(), variance, rtol=1e-15)
        np.testing.assert_array_equal(read.axis().edges(), edges)
