"""The default world against the known facts, and the table that shows it.

Networks run on one thread here: on shared machines more of them wait for each other.
"""

from collections.abc import Iterator

import polars as pl
import pytest
import torch
from rich.console import Console

from benchmarks.world.facts import BY_ENERGY, FACTS, MATCHED, PROTONS, TRADES
from benchmarks.world.moments import Sizes, realism, rendered, sample_moments
from showerstack.showers.schema import COMPOSITION
from showerstack.showers.simulation import load_settings

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


SIZES = Sizes(matched=2_500, free=2_500, gamma=4_000, gamma_test=1_200)


@pytest.fixture(scope="module")
def table() -> pl.DataFrame:
    return realism(sizes=SIZES, workers=1)


def test_every_fact_is_compared_once(table: pl.DataFrame) -> None:
    assert len({fact.key for fact in FACTS}) == len(FACTS) == table.height
    assert all(fact.tolerance > 0.0 for fact in FACTS)
    assert (table["ok"] == (table["deviation"].abs() <= 1.0)).all()
    assert not table["simulated"].is_nan().any()
    assert set(TRADES) <= {fact.key for fact in FACTS}
    assert (table.filter("ok")["trade"] == "").all()


def test_default_world_resembles_the_real_data(table: pl.DataFrame) -> None:
    # A small sample: two tolerances where the full comparison allows one.
    hadrons = table.filter(pl.col("sample").is_in([MATCHED, PROTONS]))
    near = (hadrons["deviation"].abs() < 2.0).mean()
    assert near > 0.93
    # Bins of energy hold too few of so many events to be judged one by one.
    assert table.filter(pl.col("sample") != BY_ENERGY)["ok"].mean() > 0.7


def test_a_wrong_world_is_noticed() -> None:
    wrong = load_settings().changed(cascade__lg_nmu_offset=0.3)
    result = realism(wrong, sizes=SIZES, workers=1)
    outside = result.filter(~pl.col("ok") & (pl.col("sample") == MATCHED))["quantity"].to_list()
    assert "mean Nmu" in outside
    assert "mean Ne-Nmu" in outside


def test_common_random_numbers_make_small_changes_small() -> None:
    base = load_settings()
    moved = base.changed(detector__electron_mev=base.detector.electron_mev * 1.0001)
    sizes = Sizes(matched=600, free=600, gamma=100, gamma_test=100)
    first, second = (sample_moments(s, sizes, workers=1, tasks=(COMPOSITION,)) for s in (base, moved))
    # Independent samples of this size would differ by some 0.016 in the mean of Ne.
    assert abs(first[MATCHED, "mean Ne"] - second[MATCHED, "mean Ne"]) < 0.002


def test_table_is_drawn(table: pl.DataFrame) -> None:
    console = Console(record=True, width=140)
    console.print(rendered(table))
    text = console.export_text()
    assert f"of {len(FACTS)} facts within tolerance" in text
    assert "corr Ne Nmu" in text
