"""Published stacks as peers: fitted on one half of the test events, judged on the other."""

from __future__ import annotations

import numpy as np

from benchmarks.learning.published_stacks import published_stacks


def test_stacks_are_judged_on_events_that_they_did_not_learn_from() -> None:
    rng = np.random.default_rng(1)
    n = 400
    labels = rng.integers(0, 2, n)
    noise = np.log(rng.dirichlet([1, 1], (3, n)))
    judged, found = published_stacks(noise, labels)
    assert judged.sum() == n // 2
    for name, z in found.items():
        assert z.shape == (n // 2, 2), name
        np.testing.assert_allclose(np.exp(z).sum(axis=1), 1)
        assert abs(np.mean(z.argmax(axis=1) == labels[judged]) - 0.5) < 0.15, "noise teaches nothing"
    x = rng.normal(labels, 0.7)
    sharp = np.stack([x * 0, 2 * x - 1], axis=1)
    sharp -= np.logaddexp.reduce(sharp, axis=1, keepdims=True)
    _, found = published_stacks(np.stack([sharp, noise[0], noise[1]]), labels)
    right = {name: np.mean(z.argmax(axis=1) == labels[judged]) for name, z in found.items()}
    assert right["published: logistic stack"] > right["published: average"]
