"""What lessens the bias of shares in a nature whose hadronic model or world was not trained on?

    python benchmarks/physics/hadronic_models.py --work bench/hadronic_models

Every place of ``robustness`` is nature once; the four others train. Shares are estimated as ``spectra`` does it, by
estimating functions with a response of simulated showers of the training places. Ways:

* ``one model``: training and response of one place; mean over the four. This is today's analysis.
* ``one model, response of all``: the same networks, the response of all four places together.
* ``mix``: training and response of all four, with as many training showers as one place; ``mix, all showers``: with
  all of them.
* ``marginalised``: a network learns class and place together from all showers, and is summed over the places.
* ``profiled``: the same network; the sample is a mixture with shares f_k w_m of class k and place m, sum w = 1. Its
  likelihood equations for f and w, with their response of simulated showers, are solved together by least squares, w
  between the trained places. In ``profiled, beyond`` w may leave them, expected at 1/4 +- 1/2.
* ``stable features``: the mix without the half of the columns that differ most between the training places at equal
  true energy and class, in units of what separates the classes.
* ``reversed``: the mix with a second head that tells the places, whose gradient reaches the body reversed.
* ``weighted``: a network tells the unlabelled sample from the training showers, which count by its odds in training and
  response. The shares that the mix finds are given to the training showers first: composition must not count as
  another model. It assumes that the ratio of densities is the same for all classes. ``weighted, as thrown``: without
  these shares.

Natures have equal shares, or :data:`REAL`. No way sees labels of its nature. The networks of all ways but the last are
the same (two layers of 128 units, columns of the set ``fits``). Training showers of each seed are others, test showers
the same; errors are those of the showers drawn again (the same draws for all ways) and of the seeds. The network that
weighs is not trained again for the draws. Killed and started again, it continues.
"""

from __future__ import annotations

import argparse
import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import combinations, product
from pathlib import Path

import numpy as np
import torch
from scipy.optimize import minimize
from scipy.special import logsumexp
from torch import nn
from torch.nn.functional import cross_entropy

from benchmarks.physics.places import PLACES, parse_places, showers_of
from benchmarks.physics.robustness_study import LEAST_SHARE
from showerstack.analysis.spectra.estimate import estimating_functions, likelihood_ratios, maximum_likelihood
from showerstack.analysis.spectra.fluxes import spread_of_models
from showerstack.features.catalogue import feature_set
from showerstack.models.base.inputs import LOGARITHM, InputTransform
from showerstack.models.base.learner import Batch
from showerstack.models.base.posterior import log_softmax
from showerstack.models.registry import spec
from showerstack.runtime.code import source_hash
from showerstack.runtime.context import Context
from showerstack.runtime.files import atomic_path
from showerstack.showers.dataset import Dataset
from showerstack.showers.schema import COMPOSITION

WAYS = ("one model", "one model, response of all", "mix", "mix, all showers", "marginalised", "profiled",
        "profiled, beyond", "stable features", "reversed", "weighted", "weighted, as thrown")  # fmt: skip
REAL = (0.30, 0.30, 0.18, 0.10, 0.12)
"""Unequal shares, light as below the knee; in the order of the classes."""
EQUAL = (0.2,) * 5
SKIES = {"equal": EQUAL, "light": REAL}
C = 5
WIDTH, EPOCHS, BATCH, RATE, REVERSAL = 128, 10, 256, 2e-3, 10.0
VALID_SHARE = 0.1
MOST_WEIGHT = 5.0
"""Odds are cut at this and at its inverse."""
BEYOND = 0.5
EVENTS = 10_000
"""Statistical errors are quoted for so many events."""


@dataclass(frozen=True)
class PlacedShowers:
    """Events of one or several places; the second number of an event is its place."""

    batch: Batch
    y: np.ndarray
    place: np.ndarray
    energy: np.ndarray
    """(N,) true lg E."""

    def take(self, rows: np.ndarray) -> PlacedShowers:
        """Return some of the events."""
        return PlacedShowers(self.batch.take(rows), self.y[rows], self.place[rows], self.energy[rows])


def joined(parts: list[PlacedShowers]) -> PlacedShowers:
    """Return the events of several places as one."""
    tables = [part.batch.table for part in parts if part.batch.table is not None]
    scalars = [part.batch.scalars for part in parts if part.batch.scalars is not None]
    y, place, energy = (np.concatenate([getattr(part, name) for part in parts]) for name in ("y", "place", "energy"))
    batch = replace(
        parts[0].batch, index=np.arange(len(y)), table=np.asfortranarray(np.concatenate(tables)), labels=y,
        scalars=np.concatenate(scalars) if scalars else None,
    )  # fmt: skip
    return PlacedShowers(batch, y, place, energy)


def network(
    train: PlacedShowers, y: np.ndarray, n_out: int, seed: int, *, columns: tuple[str, ...] | None = None,
    weights: np.ndarray | None = None, strength: float = 0.0,
) -> Callable[[Batch], np.ndarray]:  # fmt: skip
    """Train the network of all ways; return what gives (N, n_out) log-posteriors of events."""
    torch.manual_seed(seed)
    transform = InputTransform.fit(
        train.batch, columns or feature_set("fits", train.batch.columns), tail=LOGARITHM
    )  # fmt: skip
    x = torch.from_numpy(transform.apply(train.batch))
    target, w = torch.from_numpy(y), torch.from_numpy(np.ones(len(y)) if weights is None else weights).float()
    place = torch.from_numpy(np.unique(train.place, return_inverse=True)[1])
    body = nn.Sequential(nn.Linear(x.shape[1], WIDTH), nn.SiLU(), nn.Dropout(0.1), nn.Linear(WIDTH, WIDTH), nn.SiLU())
    head = nn.Linear(WIDTH, n_out)
    other = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.SiLU(), nn.Linear(WIDTH, int(place.max()) + 1))
    whole = nn.ModuleList([body, head, other])
    valid = torch.from_numpy(np.random.default_rng(seed).random(len(y)) < VALID_SHARE)
    rows = torch.nonzero(~valid)[:, 0]
    steps = EPOCHS * -(-len(rows) // BATCH)
    optimiser = torch.optim.AdamW(whole.parameters(), RATE, weight_decay=0.02)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, RATE, total_steps=steps)
    best, state = np.inf, {}
    for _ in range(EPOCHS):
        whole.train()
        for part in rows[torch.randperm(len(rows))].split(BATCH):
            inner = body(x[part])
            loss = (w[part] * cross_entropy(head(inner), target[part], reduction="none")).mean()
            if strength:
                # The same numbers, whose gradient is the head's times minus the strength.
                turned = (1 + strength) * inner.detach() - strength * inner
                loss = loss + cross_entropy(other(turned), place[part])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
        whole.eval()
        with torch.no_grad():
            there = cross_entropy(head(body(x[valid])), target[valid], reduction="none") * w[valid]
        if float(there.mean()) < best:
            best, state = float(there.mean()), {k: v.clone() for k, v in whole.state_dict().items()}
    whole.load_state_dict(state)

    def answer(events: Batch) -> np.ndarray:
        with torch.no_grad():
            logits = head(body(torch.from_numpy(transform.apply(events))))
        return np.asarray(log_softmax(logits.double().numpy()))

    return answer


def stable_columns(train: PlacedShowers) -> tuple[str, ...]:
    """Return the half of the columns with the least variance between places over that between classes."""
    columns = feature_set("fits", train.batch.columns)
    transform = InputTransform.fit(train.batch, columns, tail=LOGARITHM)
    x = transform.apply(train.batch).astype(np.float64)[:, : len(transform.plain)]
    edges = np.quantile(train.energy, np.arange(1, 6) / 6)
    of_place, of_class = np.zeros(x.shape[1]), np.zeros(x.shape[1])
    places = np.unique(train.place)
    for b in range(6):
        here = np.searchsorted(edges, train.energy) == b
        means = np.stack(
            [[x[here & (train.place == m) & (train.y == k)].mean(axis=0) for k in range(C)] for m in places]
        )
        of_place += means.var(axis=0).mean(axis=0)
        of_class += means.mean(axis=0).var(axis=0)
    order = np.argsort(of_place / np.maximum(of_class, 1e-9))
    differing = {transform.plain[j] for j in order[len(order) // 2 :]}
    return tuple(name for name in columns if name not in differing)


class ModelStudy:
    """One seed: its showers, and its fits, which are kept."""

    def __init__(self, given: argparse.Namespace, seed: int) -> None:
        self.given, self.seed, self.places = given, seed, parse_places(given.places)
        self.train = [self.showers(k, "train", seed) for k in range(len(self.places))]
        self.test = [self.showers(k, "test", 1) for k in range(len(self.places))]

    def showers(self, k: int, split: str, seed: int) -> PlacedShowers:
        """Return showers of a place; the test showers are those of the first seed."""
        folder = self.given.work / f"{self.given.train}-{self.given.test}" / f"seed-{seed}"
        both = showers_of(
            self.places[k], spec("mlp"), folder, train=self.given.train, test=self.given.test if seed == 1 else 1,
            seed=seed + 100 * k, ctx=Context(workers=1),
        )  # fmt: skip
        batch = getattr(both, split)
        truth = Dataset.open(folder / self.places[k].folder / f"composition_{split}", COMPOSITION).truth()
        return PlacedShowers(batch, batch.labels, np.full(len(batch), k), truth["lg_energy"].to_numpy())

    def mixed(self, sources: list[int]) -> PlacedShowers:
        """Return as many training showers as one place has, in equal parts from several."""
        size = self.given.train // len(sources)
        rng = np.random.default_rng(self.seed)
        return joined([self.train[m].take(np.sort(rng.permutation(self.given.train)[:size])) for m in sources])

    def kept(self, name: str, make: Callable[[], dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
        """Return what was computed under this name, computed now where it is not there."""
        # Of these places and this script: what another version of either has kept is not read.
        key = hashlib.sha256(repr((self.places, source_hash([Path(__file__)], ("torch",)))).encode()).hexdigest()[:8]
        folder = self.given.work / f"{self.given.train}-{self.given.test}"
        file = folder / f"fits-{self.seed}-{key}" / f"{name}.npz"
        if not file.exists():
            started = time.process_time()
            content = make()
            file.parent.mkdir(parents=True, exist_ok=True)
            with atomic_path(file) as temporary, temporary.open("wb") as stream:
                np.savez(stream, allow_pickle=False, **content)
            print(f"seed {self.seed}, {name}: {time.process_time() - started:.1f} s of processor time", flush=True)
        with np.load(file) as content:
            return dict(content)

    @cache  # noqa: B019
    def fit(self, way: str, sources: tuple[int, ...]) -> list[np.ndarray]:
        """Return the log-posteriors of a way for the test showers of every place."""

        def make() -> dict[str, np.ndarray]:
            train = self.mixed(list(sources)) if len(sources) > 1 else self.train[sources[0]]
            every = joined([self.train[m] for m in sources])
            if way == "all showers":
                answer = network(every, every.y, C, self.seed)
            elif way == "joint":
                train = every
                place = np.searchsorted(sources, train.place)
                answer = network(train, train.y * len(sources) + place, C * len(sources), self.seed)
            elif way == "stable features":
                answer = network(train, train.y, C, self.seed, columns=stable_columns(every))
            else:
                strength = REVERSAL if way == "reversed" else 0.0
                answer = network(train, train.y, C, self.seed, strength=strength)
            return {str(k): answer(part.batch).astype(np.float32) for k, part in enumerate(self.test)}

        name = "-".join([way.replace(" ", "_"), *(self.places[m].folder for m in sources)])
        content = self.kept(name, make)
        return [content[str(k)].astype(np.float64) for k in range(len(self.test))]

    def weighted(
        self, nature: int, sky: str, shares: np.ndarray, name: str
    ) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Return log-posteriors and weights of all test showers by the ratio of the sample to the training showers."""
        sources = [k for k in range(len(self.test)) if k != nature]

        def make() -> dict[str, np.ndarray]:
            rows = np.flatnonzero(sky_rows(self.test[nature].y, sky, self.seed))[: self.given.train]
            train, sample = self.mixed(sources), self.test[nature].take(rows)
            both = joined([train, sample])
            theirs = np.maximum(shares, 0.005)[train.y]
            w = np.concatenate([theirs / theirs.mean(), np.full(len(sample.y), len(train.y) / len(sample.y))])
            is_sample = (np.arange(len(both.y)) >= len(train.y)).astype(np.int64)
            ratio = network(both, is_sample, 2, self.seed, weights=w / w.mean())

            def odds(events: Batch) -> np.ndarray:
                z = ratio(events)
                return np.clip(np.exp(z[:, 1] - z[:, 0]), 1 / MOST_WEIGHT, MOST_WEIGHT)

            mine = odds(train.batch)
            answer = network(train, train.y, C, self.seed, weights=mine / mine.mean())
            content = {str(k): answer(part.batch).astype(np.float32) for k, part in enumerate(self.test)}
            return content | {f"w{k}": odds(part.batch) for k, part in enumerate(self.test)}

        content = self.kept("-".join([name.replace(" ", "_"), sky, self.places[nature].folder]), make)
        ranks = range(len(self.test))
        return [content[str(k)].astype(np.float64) for k in ranks], [content[f"w{k}"] for k in ranks]


def sky_rows(y: np.ndarray, sky: str, seed: int) -> np.ndarray:
    """Return which events of a place with equal shares make a sample with those of a sky, (N,) bool."""
    shares = np.asarray(SKIES[sky])
    return np.random.default_rng([seed, 7]).random(len(y)) < (shares / shares.max())[y]


@dataclass(frozen=True)
class NatureSample:
    """A nature's sample: which rows, their labels for the judge alone, and how often each draw has each event."""

    rows: np.ndarray
    y: np.ndarray
    draws: np.ndarray
    """(B, n) float32."""


@dataclass(frozen=True)
class ShareBias:
    """Shares found for a nature, less the true ones; B draws."""

    bias: np.ndarray
    """(C,)."""
    drawn: np.ndarray
    """(B, C) with sample and response drawn again."""
    error: np.ndarray
    """(C,) statistical error of the sample alone, for :data:`EVENTS`."""


def mixing(s: np.ndarray, y: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Return A_jk (B, C, C), the mean of s_j over events of class k; ``w`` (B, n) are weights of events."""
    parts = []
    for k in range(C):
        here = y == k
        parts.append((w[:, here] @ s[here]) / w[:, here].sum(axis=1)[:, None])
    return np.stack(parts, axis=2)


def result_of(found: np.ndarray, drawn: np.ndarray, alone: np.ndarray, sample: NatureSample) -> ShareBias:
    """Compare shares (C,), those of draws (B, C), and those of draws of the sample alone, with the true ones."""
    one = np.eye(C)[sample.y]
    truth, drawn_truth = one.mean(axis=0), sample.draws @ one / sample.draws.sum(axis=1)[:, None]
    return ShareBias(found - truth, drawn - drawn_truth, alone.std(axis=0) * np.sqrt(len(sample.y) / EVENTS))


def solve(a: np.ndarray, g: np.ndarray) -> np.ndarray:
    """Return shares (..., C)."""
    return np.asarray(np.linalg.solve(a, g[..., None])[..., 0])


def linear(
    log_proba: np.ndarray,
    response: list[tuple[np.ndarray, np.ndarray, np.ndarray]],
    prior: np.ndarray,
    sample: NatureSample,
) -> ShareBias:
    """Return what ``spectra``'s estimator finds; the response is log-posteriors, labels and weights (B + 1, n)."""
    ours = likelihood_ratios(log_proba[sample.rows], prior)
    at = np.maximum(maximum_likelihood(ours), LEAST_SHARE)
    at /= at.sum()
    g = estimating_functions(ours, at)
    s = np.concatenate([estimating_functions(likelihood_ratios(z, prior), at) for z, _, _ in response])
    a = mixing(s, np.concatenate([y for _, y, _ in response]), np.concatenate([w for _, _, w in response], axis=1))
    means = sample.draws @ g / sample.draws.sum(axis=1)[:, None]
    nominal = np.broadcast_to(a[0], a[1:].shape)
    return result_of(solve(a[0], g.mean(axis=0)), solve(a[1:], means), solve(nominal, means), sample)


def profiled(
    joint: list[np.ndarray], sources: list[int], labels: list[np.ndarray], counts: list[np.ndarray], nature: int,
    sample: NatureSample, *, beyond: bool,
) -> tuple[ShareBias, np.ndarray]:  # fmt: skip
    """Return the result with shares w (M,) of the places fitted for the sample and for every draw, and w."""
    n_places = len(sources)
    flat = np.full(C * n_places, 1 / (C * n_places))
    ours = likelihood_ratios(joint[nature][sample.rows], flat)
    at = np.maximum(maximum_likelihood(ours.reshape(-1, C, n_places).sum(axis=2)), LEAST_SHARE)
    at /= at.sum()

    def functions(ratios: np.ndarray) -> np.ndarray:
        """Return the terms of the equations for f and, of w, for all places but the last, (n, C + M - 1)."""
        each = estimating_functions(ratios, np.repeat(at, n_places) / n_places).reshape(-1, C, n_places)
        return np.concatenate([each.mean(axis=2), (at @ each)[:, :-1]], axis=1)

    g = functions(ours)
    theirs = [functions(likelihood_ratios(joint[m], flat)) for m in sources]
    a = np.stack([mixing(s, labels[m], counts[m]) for s, m in zip(theirs, sources, strict=True)])
    means = np.concatenate([g.mean(axis=0)[None], sample.draws @ g / sample.draws.sum(axis=1)[:, None]])
    variance = np.cov(g, rowvar=False) / len(g)
    for s, m in zip(theirs, sources, strict=True):
        for k in range(C):
            here = labels[m] == k
            variance += (at[k] / n_places) ** 2 * np.cov(s[here], rowvar=False) / here.sum()
    # The equations of f hold a constant: its scatter is none.
    root = np.linalg.inv(np.linalg.cholesky(variance + 1e-6 * np.diag(np.diag(variance))))

    def best(mean: np.ndarray, response: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        def shares(w: np.ndarray) -> tuple[np.ndarray, float]:
            matrix = root @ np.tensordot(w, response, 1)
            f = np.linalg.lstsq(matrix, root @ mean)[0]
            distance = float(((matrix @ f - root @ mean) ** 2).sum())
            return f, distance + beyond * float(((w - 1 / n_places) ** 2).sum()) / BEYOND**2

        starts = 0.2 / n_places + 0.8 * np.eye(n_places)
        ends = [
            minimize(lambda w: shares(w)[1], start, method="SLSQP", bounds=[(-2 * beyond, 1 + 2 * beyond)] * n_places,
                     constraints={"type": "eq", "fun": lambda w: w.sum() - 1}, options={"eps": 1e-4})
            for start in starts
        ]  # fmt: skip
        w = min(ends, key=lambda end: float(end.fun)).x
        return shares(w)[0], w

    found, place = best(means[0], a[:, 0])
    draws = range(1, len(means))
    alone, drawn = (np.stack([best(means[b], a[:, b * own])[0] for b in draws]) for own in (0, 1))
    return result_of(found, drawn, alone, sample), place


def judged(study: ModelStudy, nature: int, sky: str, draws: int) -> dict[str, np.ndarray]:
    """Return what every way finds in a nature: results as ``way|training|field``, log-losses less one model's, cover.

    ``loss|way`` (2, 2) is for abroad and home a mean and its error from showers; ``cover`` (P, 4, C) for each set of
    training places: their number, the bias of the mean of their responses, what ``hadronic_model`` is, its error.
    """
    sources = [k for k in range(len(study.test)) if k != nature]
    labels = [part.y for part in study.test]
    drawn = [np.random.default_rng([k, 11]).poisson(1.0, (draws, len(y))) for k, y in enumerate(labels)]
    counts = [np.concatenate([np.ones((1, d.shape[1])), d]).astype(np.float32) for d in drawn]
    rows = np.flatnonzero(sky_rows(labels[nature], sky, study.seed))
    sample = NatureSample(rows, labels[nature][rows], counts[nature][1:, rows])
    prior = np.full(C, 1 / C)

    def of(z: list[np.ndarray], where: list[int], w: list[np.ndarray] | None = None) -> ShareBias:
        response = [(z[m], labels[m], counts[m] if w is None else counts[m] * w[m]) for m in where]
        return linear(z[nature], response, prior, sample)

    def loss(z: list[np.ndarray], k: int) -> np.ndarray:
        return -z[k][np.arange(len(labels[k])), labels[k]]

    results: dict[str, list[ShareBias]] = {}
    answers: dict[str, list[list[np.ndarray]]] = {}
    answers["one model"] = [study.fit("plain", (m,)) for m in sources]
    results["one model"] = [of(z, [m]) for z, m in zip(answers["one model"], sources, strict=True)]
    results["one model, response of all"] = [of(z, sources) for z in answers["one model"]]
    ways = {"mix": "plain", "mix, all showers": "all showers"}
    ways |= {name: name for name in ("stable features", "reversed")}
    for name, way in ways.items():
        answers[name] = [study.fit(way, tuple(sources))]
        results[name] = [of(answers[name][0], sources)]
    joint = study.fit("joint", tuple(sources))
    summed = [logsumexp(z.reshape(-1, C, len(sources)), axis=2) for z in joint]
    answers["marginalised"], results["marginalised"] = [summed], [of(summed, sources)]
    for name in ("profiled", "profiled, beyond"):
        one, place = profiled(joint, sources, labels, counts, nature, sample, beyond=name != "profiled")
        results[name] = [one]
        print(f"  {name} in {study.places[nature].name}, {sky}: w = {np.round(place, 2)}", flush=True)
    truth = np.bincount(sample.y, minlength=C) / len(sample.y)
    for name, shares in (("weighted", results["mix"][0].bias + truth), ("weighted, as thrown", np.asarray(EQUAL))):
        z, w = study.weighted(nature, sky, shares, name)
        answers[name], results[name] = [z], [of(z, sources, w)]
    abroad = np.mean([loss(z, nature) for z in answers["one model"]], axis=0)
    content: dict[str, np.ndarray] = {}
    for name, parts in answers.items():
        homes = [[m] for m in sources] if len(parts) > 1 else [sources]
        pairs = [(z, m) for z, where in zip(parts, homes, strict=True) for m in where]
        at_home = [loss(z, m) - loss(study.fit("plain", (m,)), m) for z, m in pairs]
        there = [np.mean([loss(z, nature) for z in parts], axis=0) - abroad]
        content[f"loss|{name}"] = np.array([_mean(there), _mean(at_home)])
    alone = [of(answers["mix"][0], [m]) for m in sources]
    cover = []
    for places in [*combinations(range(len(sources)), 2), tuple(range(len(sources)))]:
        spread = np.sqrt(np.diag(spread_of_models([alone[i].bias for i in places])))
        bias = np.mean([alone[i].bias for i in places], axis=0)
        noise = np.mean([alone[i].drawn for i in places], axis=0).std(axis=0)
        cover.append(np.stack([np.full(C, len(places)), bias, spread, noise]))
    for name, each in results.items():
        content |= {f"{name}|{i}|{field}": value for i, one in enumerate(each) for field, value in vars(one).items()}
    return content | {"cover": np.stack(cover)}


def _mean(parts: list[np.ndarray]) -> tuple[float, float]:
    """Return the mean of independent parts and its error."""
    variance = sum(part.var() / len(part) for part in parts) / len(parts) ** 2
    return float(np.mean([part.mean() for part in parts])), float(np.sqrt(variance))


Found = dict[tuple[int, int, str], dict[str, np.ndarray]]
"""By seed, nature and sky."""


def sizes(contents: list[dict[str, np.ndarray]], way: str) -> tuple[np.ndarray, np.ndarray]:
    """Return four numbers in per cent and those of the draws (B, 4).

    Mean |bias|; mean square of biases less what chance makes; what chance alone makes of the first; mean statistical
    error of a share (the same in all draws).
    """
    bias, drawn, error = (
        100 * np.stack([value for one in contents for name, value in one.items()
                        if name.rpartition("|")[0].rpartition("|")[0] == way and name.endswith(field)])
        for field in ("|bias", "|drawn", "|error")
    )  # fmt: skip
    noise = drawn.var(axis=1, ddof=1)
    chance, mean_error = np.sqrt(2 / np.pi * noise).mean(), error.mean()
    # A draw has the noise of the sample and its own.
    squares = (drawn**2).mean(axis=(0, 2)) - 2 * noise.mean()
    each = [np.abs(drawn).mean(axis=(0, 2)), squares, np.full(len(squares), chance), np.full(len(squares), mean_error)]
    return np.array([np.abs(bias).mean(), (bias**2 - noise).mean(), chance, mean_error]), np.stack(each, axis=1)


def with_error(values: list[np.ndarray], drawn: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return means over seeds of several numbers (n,), and errors from the seeds and from draws (B, n)."""
    by_seeds = np.std(values, axis=0, ddof=1) / len(values) ** 0.5 if len(values) > 1 else 0.0
    return np.mean(values, axis=0), np.hypot(np.mean(drawn, axis=0).std(axis=0, ddof=1), by_seeds)


def tables(found: Found, places: tuple[str, ...]) -> list[str]:
    """Return the tables as lines."""
    seeds = sorted({seed for seed, _, _ in found})

    def of(way: str, sky: str | None = None, nature: int | None = None) -> tuple[list[np.ndarray], list[np.ndarray]]:
        each = [
            sizes([v for (s, k, n), v in found.items() if s == seed and sky in (None, n) and nature in (None, k)], way)
            for seed in seeds
        ]
        return [one for one, _ in each], [one for _, one in each]

    heads = ("mean bias, % (chance)", "less one model's", "rms without chance, %", "error, %", "over one model's",
             "log-loss abroad", "at home")  # fmt: skip
    lines = [f"| way | {' | '.join(heads)} |", "|---" * (1 + len(heads)) + "|"]
    old, old_drawn = of(WAYS[0])
    natures = sorted({k for _, k, _ in found})
    for way in WAYS:
        values, drawn = of(way)
        (mean, square, chance, error), by = with_error(values, drawn)
        less, less_by = with_error(
            [a - b for a, b in zip(values, old, strict=True)],
            [a - b for a, b in zip(drawn, old_drawn, strict=True)],
        )
        root = max(square, 1e-9) ** 0.5
        pairs = [(of(way, nature=k)[0], of(WAYS[0], nature=k)[0]) for k in natures]
        ratios = np.array([np.mean(one, axis=0) / np.mean(other, axis=0) for one, other in pairs])
        cells = [
            way, f"{mean:.2f} ± {by[0]:.2f} ({chance:.2f})", f"{less[0]:+.2f} ± {less_by[0]:.2f}",
            f"{root:.2f} ± {by[1] / (2 * root):.2f}", f"{error:.2f}",
            f"{ratios[:, 3].mean():.2f} ± {ratios[:, 3].std(ddof=1) / len(natures) ** 0.5:.2f}",
        ]  # fmt: skip
        if f"loss|{way}" in found[seeds[0], 0, "equal"]:
            losses = np.array([[found[seed, k, "equal"][f"loss|{way}"] for k in natures] for seed in seeds])
            # The natures' showers are other ones, those of seeds the same.
            by_showers = np.sqrt((losses[..., 1] ** 2).sum(axis=1).mean(axis=0)) / len(natures)
            value, by_seeds = with_error(list(losses[..., 0].mean(axis=1)), [np.zeros((2, 2))])
            cells += [f"{a:+.4f} ± {b:.4f}" for a, b in zip(value, np.hypot(by_showers, by_seeds), strict=True)]
        else:
            cells += ["", ""]
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", f"| way | {' | '.join([*SKIES, *places])} |", "|---" * (1 + len(SKIES) + len(places)) + "|"]
    for way in WAYS:
        picks = [of(way, sky=sky) for sky in SKIES] + [of(way, nature=k) for k in natures]
        cells = [f"{value[0]:.2f} ± {by[0]:.2f}" for value, by in (with_error(*pick) for pick in picks)]
        lines.append(f"| {way} | {' | '.join(cells)} |")
    return [*lines, "", *covered(found)]


def covered(found: Found) -> list[str]:
    """Return how the error ``hadronic_model`` covers; 95 % intervals over natures, which are drawn again."""
    heads = ("cases", "mean bias, %", "mean hadronic_model, %", "within 1 error, %", "within 2, %", "factor for 68 %")
    lines = [f"| response | {' | '.join(heads)} |", "|---" * (1 + len(heads)) + "|"]
    for name, many in (("two places", False), ("four places", True)):
        each = [
            np.concatenate([row for (_, nature, _), content in found.items() if nature == k
                            for row in content["cover"] if (row[0, 0] > 2) == many], axis=1)
            for k in sorted({k for _, k, _ in found})
        ]  # fmt: skip

        def numbers(pick: np.ndarray, each: list[np.ndarray] = each) -> np.ndarray:
            _, bias, spread, noise = np.concatenate([each[i] for i in pick], axis=1)
            away = np.abs(bias) / np.hypot(spread, noise)
            factor = np.quantile(np.sqrt(np.maximum(bias**2 - noise**2, 0)) / spread, 0.6827)
            parts = (np.abs(bias), spread, away < 1, away < 2)
            return np.array([*(100 * part.mean() for part in parts), factor])

        rng = np.random.default_rng(1)
        drawn = [numbers(rng.integers(0, len(each), len(each))) for _ in range(500)]
        low, high = np.quantile(drawn, (0.025, 0.975), axis=0)
        rows = zip(numbers(np.arange(len(each))), low, high, (2, 2, 0, 0, 1), strict=True)
        cells = [f"{v:.{d}f} [{a:.{d}f}, {b:.{d}f}]" for v, a, b, d in rows]
        lines.append(f"| {name} | {sum(one.shape[1] for one in each)} | {' | '.join(cells)} |")
    return lines


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path("bench/hadronic_models"), help="folder for showers and fits")
    parser.add_argument("--places", default=",".join(PLACES))
    parser.add_argument("--train", type=int, default=16_000, help="training showers of a place, under the test's cuts")
    parser.add_argument("--test", type=int, default=40_000, help="test showers of a place")
    parser.add_argument("--seeds", default="1")
    parser.add_argument("--draws", type=int, default=24, help="how often the showers are drawn again")
    given = parser.parse_args()
    torch.set_num_threads(1)
    names = tuple(place.name for place in parse_places(given.places))
    found: Found = {}
    for seed in (int(part) for part in given.seeds.split(",")):
        study = ModelStudy(given, seed)
        for nature, sky in product(range(len(names)), SKIES):
            make = partial(judged, study, nature, sky, given.draws)
            found[seed, nature, sky] = study.kept(f"judged-{given.draws}-{sky}-{study.places[nature].folder}", make)
        print("\n".join(tables(found, names)), flush=True)
        print(f"\n{time.process_time():.0f} s of processor time in this run", flush=True)


if __name__ == "__main__":
    main()
