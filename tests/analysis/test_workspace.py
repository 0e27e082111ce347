"""The photon search's model in pyhf: the same likelihood, the same limit."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize

from showerstack.analysis.photons.on_off import Common, OnOff, signal_limits
from showerstack.analysis.photons.workspace import workspace

# pyhf's own use of jsonschema.
pytestmark = pytest.mark.filterwarnings("ignore:jsonschema.RefResolver:DeprecationWarning")

EFFICIENCY = 0.5


def _counts(*rows: list[float]) -> OnOff:
    return OnOff(*(np.array(row) for row in rows))


MANY = _counts([400.0], [900.0], [200.0], [2000.0], [1.1], [1.0], [0.05])
FEW = _counts([3.0, 0.0], [30.0, 8.0], [0.0, 7.5], [120.0, 40.5], [1.0, 1.3], [0.7, 0.3], [0.05, 0.02])


def _pyhf(counts: OnOff, common: Common) -> tuple[Any, Any, Any]:
    """Return pyhf with a minimiser that reaches minima on borders, the model and its data."""
    pyhf = pytest.importorskip("pyhf")
    pyhf.set_backend("numpy", "minuit")
    model_and_data = pyhf.Workspace(workspace(counts, EFFICIENCY, common))
    model = model_and_data.model()
    return pyhf, model, model_and_data.data(model)


@pytest.mark.parametrize(("counts", "common"), [(MANY, Common()), (FEW, Common()), (MANY, Common(0.2, 0.1))])
def test_pyhf_has_the_same_likelihood(counts: OnOff, common: Common) -> None:
    pyhf, model, data = _pyhf(counts, common)

    def ours(signal: float) -> float:
        def deviance(x: np.ndarray) -> float:
            transfer, efficiency = np.exp(x * (common.transfer, common.efficiency))
            return counts.deviance(signal * efficiency, transfer) + float(x @ x)

        if not common.transfer:
            return counts.deviance(signal)
        return float(minimize(deviance, [0.0, 0.0], method="Nelder-Mead", options={"xatol": 1e-6, "fatol": 1e-8}).fun)

    signals = np.array([0.5, 1.0, 2.0]) * max(counts.estimate(), 2.0)
    theirs = [
        float(pyhf.infer.mle.fixed_poi_fit(signal / EFFICIENCY, data, model, return_fitted_val=True)[1])
        for signal in signals
    ]
    np.testing.assert_allclose(np.diff(theirs), np.diff([ours(signal) for signal in signals]), atol=2e-3)


@pytest.mark.slow
def test_limits_agree_where_events_are_many() -> None:
    pytest.importorskip("pyhf")
    from pyhf.infer.intervals.upper_limits import toms748_scan

    _, model, data = _pyhf(MANY, Common())
    best = MANY.estimate()
    theirs, _ = toms748_scan(data, model, best / EFFICIENCY, 2 * best / EFFICIENCY, level=0.1, rtol=1e-4)
    ours = signal_limits(MANY, 0.9, Common(toys=3000)).limit
    assert ours == pytest.approx(EFFICIENCY * float(theirs), rel=0.01)
    # The random error of the step from estimate to limit is some 2 %.
    assert ours - best == pytest.approx(EFFICIENCY * float(theirs) - best, rel=0.12)


def test_the_schema_of_workspaces_holds() -> None:
    pyhf = pytest.importorskip("pyhf")
    pyhf.schema.validate(workspace(FEW, EFFICIENCY, Common(0.1, 0.1)), "workspace.json")


def test_a_modifier_changes_a_sample_once() -> None:
    for channel in workspace(FEW, EFFICIENCY, Common(0.1, 0.1))["channels"]:
        for sample in channel["samples"]:
            modifiers = [(modifier["name"], modifier["type"]) for modifier in sample["modifiers"]]
            assert len(modifiers) == len(set(modifiers))


@pytest.mark.slow
def test_the_lines_of_the_page_give_limits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("pyhf")
    page = (Path(__file__).parents[2] / "docs" / "physics" / "photons.md").read_text()
    (lines,) = re.findall(r"```python\n(.*?toms748_scan.*?)```", page, re.DOTALL)
    (place,) = re.findall(r'Path\("(.*?/pyhf)"\)', lines)
    (tmp_path / place).mkdir(parents=True)
    for name, counts in (("15-15.5", MANY), ("above_15", FEW)):
        (tmp_path / place / f"{name}.json").write_text(json.dumps(workspace(counts, EFFICIENCY, Common())))
    monkeypatch.chdir(tmp_path)
    exec(compile(lines, "photons.md", "exec"), {})
    said = dict(line.split(" ", 2)[:2] for line in capsys.readouterr().out.splitlines())
    assert set(said) == {"15-15.5", "above_15"}
    limit = signal_limits(MANY, 0.9, Common(toys=300)).limit / EFFICIENCY
    assert float(said["15-15.5"]) == pytest.approx(limit, rel=0.03)
    assert 1.0 < float(said["above_15"]) * EFFICIENCY < 20.0, "three events are there"
