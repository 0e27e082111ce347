"""Named cuts: compared in float32 as stored, with a cut-flow table."""

import numpy as np
import polars as pl
import pytest

from runtime.errors import InputError
from showers import protocols


def _scalars(*rows: tuple[float, float, float]) -> pl.DataFrame:
    """Rows of (Ze, Ne, Nmu), stored as float16."""
    stored = np.array([(15.0, ze, 100.0, ne, nmu) for ze, ne, nmu in rows], dtype=np.float16)
    return protocols.scalar_frame(stored)


def test_comparison_is_on_stored_values() -> None:
    # 4.8 and 4.799 are stored as 4.80078 and pass; a zenith of 29.997 is stored as 30 and fails.
    frame = _scalars((10.0, 4.8, 4.0), (10.0, 4.799, 4.0), (10.0, 4.79, 4.0), (29.997, 5.0, 4.0), (29.98, 5.0, 4.0))
    assert protocols.TEST.mask(frame).tolist() == [True, True, False, False, True]


def test_not_a_number_never_passes() -> None:
    frame = _scalars((10.0, np.nan, 4.0), (np.nan, 5.0, 4.0), (10.0, 5.0, 4.0))
    assert protocols.TEST.mask(frame).tolist() == [False, False, True]


def test_flow_counts_alone_and_together() -> None:
    frame = _scalars((40.0, 5.0, 4.0), (10.0, 5.0, 4.0), (10.0, 4.0, 4.0), (35.0, 4.0, 4.0))
    flow = protocols.TEST.flow(frame)
    assert flow["cut"].to_list() == ["all events", "Ze < 30", "Ne > 4.8"]
    assert flow["alone"].to_list() == [4, 2, 2]
    assert flow["cumulative"].to_list() == [4, 2, 1]


def test_matched_needs_the_age_and_cuts_the_muon_number() -> None:
    with pytest.raises(InputError, match="needs column Age"):
        protocols.MATCHED.mask(_scalars((10.0, 5.0, 4.0)))
    stored = np.array([(15.0, 10.0, 0.0, 5.0, nmu) for nmu in (3.5, 3.7, 3.7)], dtype=np.float32)
    frame = protocols.scalar_frame(stored, np.array([1.0, 1.0, 1.5], dtype=np.float32))
    assert protocols.MATCHED.mask(frame).tolist() == [False, True, False]


def test_no_cuts_keep_everything() -> None:
    assert protocols.NONE.mask(_scalars((80.0, 0.0, 0.0))).all()


def test_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(InputError, match=r"'loose'.*none, test, test_age, test_2026, test_2026_age, matched"):
        protocols.cut_set_named("loose")
