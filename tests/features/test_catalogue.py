"""What is declared is what is computed; the documentation is the catalogue."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from features.build import build_table
from features.catalogue import CATALOGUE, GROUPS, NOT_LEARNED, SETS, feature_set, listing
from features.compute import column_names
from features.device import namespace
from features.groups.lateral import POSITION_GROUP
from runtime.errors import InputError

DOCS = Path(__file__).parents[2] / "docs" / "methods" / "features.md"


def test_table_holds_every_declared_feature_within_its_range(write, draw):
    showers = draw(2_000, seed=4)
    table = build_table(write(showers, age=showers.truth["age"].to_numpy().astype(np.float32)))
    assert table.columns == column_names(True, frozenset(GROUPS)) == tuple(CATALOGUE)
    values = table.matrix(table.columns)
    for k, name in enumerate(table.columns):
        column = values[:, k]
        assert not np.isinf(column).any(), name
        defined = column[~np.isnan(column)]
        assert defined.size > 0.5 * len(column), name
        assert defined.min() >= CATALOGUE[name].low, (name, defined.min())
        assert defined.max() <= CATALOGUE[name].high, (name, defined.max())
        assert np.ptp(defined) > 0 or name in ("mu_saturated", "fit_converged"), f"{name} is constant"
    assert _same_columns(values.astype(np.float64), table.columns) == []


def _same_columns(values, names):
    """Return pairs of columns of which one is the other times a constant plus a constant."""
    pairs = []
    for i, j in combinations(range(len(names)), 2):
        both = np.isfinite(values[:, i]) & np.isfinite(values[:, j])
        x, y = (values[both, k] - values[both, k].mean() for k in (i, j))
        norm = np.sqrt((x @ x) * (y @ y))
        if norm > 0.0 and abs(x @ y) > (1.0 - 1e-10) * norm:
            pairs.append((names[i], names[j]))
    return pairs


def test_declarations_are_complete():
    for feature in CATALOGUE.values():
        assert feature.group in GROUPS
        for text in (feature.unit, feature.meaning, feature.formula, feature.source):
            assert text
        assert feature.low < feature.high


def test_sets():
    assert not set(SETS) & set(GROUPS)
    for name in SETS:
        columns = feature_set(name, CATALOGUE)
        assert len(set(columns)) == len(columns)
        assert not NOT_LEARNED & set(columns)
    assert set(feature_set("scalars", CATALOGUE)) < set(feature_set("fits", CATALOGUE))
    assert set(feature_set("fits", CATALOGUE)) < set(feature_set("fits+profile", CATALOGUE))
    for name in ("published-grid", "fits", "fits+profile"):
        assert 30 <= len(feature_set(name, CATALOGUE)) <= 100, name
    assert all(CATALOGUE[name].group != POSITION_GROUP for name in feature_set("all", CATALOGUE))
    assert "Age" not in feature_set("scalars", set(CATALOGUE) - {"Age"})
    assert feature_set("muon-fit", CATALOGUE)[0] == "fit_lg_nmu"
    assert feature_set("e_hits", CATALOGUE) == ("e_hits",)
    assert {"e_hits", "mu_hits"} < set(feature_set("published-grid", CATALOGUE))
    with pytest.raises(InputError, match="unknown feature set 'fit'"):
        feature_set("fit", CATALOGUE)
    with pytest.raises(InputError, match="no column of feature set"):
        feature_set("profile", ["E"])


def test_listing():
    text = listing()
    assert all(name in text for name in CATALOGUE)
    assert "fit_age" not in listing("size")
    assert listing("size", "md").startswith("## size")
    with pytest.raises(InputError, match="unknown format"):
        listing(format="html")
    with pytest.raises(InputError, match="unknown feature group"):
        listing("sizes")


def test_documentation_is_the_catalogue():
    command = "python cli.py features --list --format md > docs/methods/features.md"
    assert DOCS.read_text(encoding="utf-8").strip() == listing(format="md").strip(), f"out of date, run: {command}"


def test_namespace_is_numpy():
    assert namespace("cpu").asarray([1.0]).sum() == 1.0
