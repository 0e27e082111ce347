"""EPOS against QGSJet: what a network trained on QGSJet makes of either, and how many events pass the cuts.

What is known of the real simulations are one network's accuracies and mean class numbers on test events of both models
and the pass rates of their sets; differences between the models are compared, so that it does not matter which network
it was, nor what the simulated sky has wrong for both.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from showers.schema import COMPOSITION
from showers.simulation.blocks import BlockJob, SimulatedEvents, passes
from showers.simulation.run import accepted
from showers.simulation.settings import Settings
from showers.simulation.validation.facts import Fact
from showers.simulation.validation.fit import Free, Problem
from showers.simulation.validation.moments import Sizes
from showers.simulation.validation.published_network import Published, inputs, posteriors

SAMPLE = "EPOS less QGSJet"
FACTS = (
    Fact(SAMPLE, "accuracy", 0.489 - 0.520, 0.010),
    Fact(SAMPLE, "mean class number, proton", 0.767 - 0.665, 0.025),
    Fact(SAMPLE, "mean class number, carbon", 1.938 - 1.824, 0.025),
    Fact(SAMPLE, "mean class number, iron", 3.179 - 3.162, 0.025),
    Fact(SAMPLE, "lg pass rate", float(np.log10(0.0733 / 0.0939)), 0.08),
)


class ModelProblem(Problem):
    """Deviations of the differences between EPOS and QGSJet as a function of the shifts of EPOS."""

    def __init__(
        self,
        start: Settings,
        free: Sequence[Free],
        networks: Sequence[Published],
        *,
        sizes: Sizes,
        seed: int,
        workers: int | None = None,
    ) -> None:
        super().__init__(start, free, FACTS, networks, (COMPOSITION,), sizes=sizes, seed=seed, workers=workers)
        self.reference: dict[float, np.ndarray] = {}
        """What QGSJet's events give, by sample size: the shifts do not move it."""

    def deviations(self, values: np.ndarray, *, slopes_only: bool = False, size: float = 1.0) -> np.ndarray:
        """Simulate and return the deviations in tolerances."""
        settings, sizes = self.settings(values), self.sizes.times(size)
        if size not in self.reference:
            self.reference[size] = self._seen(settings, "qgs", sizes)
        found = self._seen(settings, "epos", sizes) - self.reference[size]
        return np.array([(f - fact.real) / fact.tolerance for f, fact in zip(found, self.facts, strict=True)])

    def _seen(self, settings: Settings, model: str, sizes: Sizes) -> np.ndarray:
        """Return accuracy, mean class numbers of protons, carbon and iron, mean of the networks, and lg pass rate."""

        def events(cuts: str, n: int) -> Iterator[SimulatedEvents]:
            return accepted(BlockJob(COMPOSITION, "test", self.seed, model, cuts, settings), n, self.workers)

        seen = []
        for portion in events("matched", sizes.matched):
            e = portion.event
            scalars = {"E": e.lg_energy, "Ze": e.zenith_deg, "Ne": e.lg_ne, "Nmu": e.lg_nmu, "Age": e.age}
            said = [posteriors(t.published.network, *inputs(portion.grids, scalars)) for t in self.networks]
            seen.append((portion.labels.astype(np.int64), np.stack(said, axis=1).astype(np.float64)))
        labels, found = (np.concatenate(parts) for parts in zip(*seen, strict=True))
        accuracy = (found.argmax(axis=2) == labels[:, None]).mean()
        index = (found @ np.arange(COMPOSITION.n_classes)).mean(axis=1)
        free = np.concatenate([passes(portion.event, "test") for portion in events("none", sizes.free)])
        return np.array([accuracy, *(index[labels == k].mean() for k in (0, 2, 4)), np.log10(free.mean())])
