"""Fits and predictions in threads of one process: the bytes of one after the other, and the process as it was."""

from __future__ import annotations

import logging
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from threadpoolctl import threadpool_info

from showerstack.models.networks.images import LeNetLearner
from showerstack.models.networks.physics import TabularMLP
from tests.models.conftest import CLASSES, gaussian_events, toy_showers

TRAIN, VALID, NEW = (gaussian_events(n, seed).batch for n, seed in ((300, 1), (100, 2), (50, 3)))


def fitted(seed: int) -> TabularMLP:
    learner = TabularMLP(CLASSES, {"epochs": 2, "width": 16, "hidden": 16, "dropout": 0.3})
    return learner.fit(TRAIN, VALID, seed=seed)


def log_proba(seed: int) -> np.ndarray:
    return fitted(seed).predict_log_proba(NEW)


def state() -> dict[str, Any]:
    """Return what libraries keep for the whole process and a fit sets for itself."""
    log = logging.getLogger("showerstack")
    blas = [(one["internal_api"], one["num_threads"]) for one in threadpool_info() if one["user_api"] == "blas"]
    return {
        "threads": torch.get_num_threads(),
        "determinism": torch.get_deterministic_debug_mode(),
        "fill": torch.utils.deterministic.fill_uninitialized_memory,  # type: ignore[attr-defined]
        "tf32": torch.backends.cudnn.allow_tf32,
        "random": torch.get_rng_state().tolist(),
        "log": (log.level, log.propagate, list(log.handlers)),
        "filters": len(warnings.filters),
        "blas": blas,
    }


@pytest.mark.parametrize("threads", [2, 4, 8])
def test_fits_in_threads_are_those_of_one_after_the_other(threads: int) -> None:
    fitted(0)  # whatever is set up once
    before, expected = state(), [log_proba(seed) for seed in range(threads)]
    with ThreadPoolExecutor(threads) as pool:
        found = list(pool.map(log_proba, range(threads)))
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)
    assert not np.array_equal(expected[0], expected[1])
    assert state() == before


@pytest.mark.parametrize("threads", [2, 4, 8])
def test_predictions_of_a_torch_network_in_threads_leave_torch_as_it_was(threads: int) -> None:
    showers = toy_showers(60, 1)
    learner = LeNetLearner(CLASSES, {"epochs": 1})
    learner.fit(showers, toy_showers(30, 2), seed=1)
    new = toy_showers(40, 3)
    expected, before = learner.predict_log_proba(new), state()
    with ThreadPoolExecutor(threads) as pool:
        found = list(pool.map(lambda _: learner.predict_log_proba(new), range(3 * threads)))
    for one in found:
        np.testing.assert_array_equal(one, expected)
    assert state() == before
