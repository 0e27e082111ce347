"""How wrong are shares if nature is one hadronic model, and training and response know the others?

``python -m benchmarks.physics.hadronic_nature --work bench/nature --store`` lets each model be nature once: for the
hadronic models of the cascade Monte Carlo, and beside them for the shifts of ``simulate --model``. Showers are kept.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures, StandardScaler

from benchmarks.physics.estimate import estimating_functions, likelihood_ratios, maximum_likelihood
from benchmarks.shared.results import HELP, store
from showerstack.runtime.files import write_npz
from showerstack.showers.schema import COMPOSITION
from showerstack.showers.simulation.blocks import SPLITS, BlockJob
from showerstack.showers.simulation.datasets import accepted_events
from showerstack.showers.simulation.monte_carlo import CASCADES
from showerstack.showers.simulation.settings import load_settings

SETS = {"hadronic models": tuple(CASCADES), "shifts": ("qgs", "epos", "sibyll")}
"""Sets of models; in each, one is nature and the others are known."""
COLUMNS = ("Ne", "Nmu", "Ze", "Age", "r", "e/gamma", "muons")
"""Reconstructed quantities; the last are the core's distance from the centre, and lg of both channels' deposits."""
LEAST_SHARE = 0.02
"""No class is given less at the expansion point: weights of events stay bounded."""
SEEN = 3.0
"""Standard errors by which a bias counts as seen."""


@dataclass(frozen=True)
class ModelShowers:
    """Showers of one model under the test's cuts."""

    table: np.ndarray
    """(N, 7): :data:`COLUMNS`."""
    labels: np.ndarray


def sample_of(model: str, split: str, n: int, work: Path, seed: int) -> ModelShowers:
    """Return n showers of a model in the default world."""
    file = work / f"{model}-{split}-{n}-{seed}.npz"
    if not file.exists():
        job = BlockJob(COMPOSITION, split, seed, model, "test", load_settings())
        tables, labels = [], []
        for events in accepted_events(job, n, 1):
            e = events.event
            sums = np.log10(1.0 + events.grids.sum(axis=(1, 2), dtype=np.float64))
            radius = np.hypot(e.core_x_m, e.core_y_m)
            tables.append(np.column_stack([e.lg_ne, e.lg_nmu, e.zenith_deg, e.age, radius, sums]))
            labels.append(events.labels)
        work.mkdir(parents=True, exist_ok=True)
        write_npz(file, table=np.concatenate(tables), labels=np.concatenate(labels))
    with np.load(file, allow_pickle=False) as stored:
        return ModelShowers(stored["table"], stored["labels"].astype(np.int64))


def joined(samples: list[ModelShowers], size: int) -> ModelShowers:
    """Return as many showers, in equal parts from several samples."""
    each = size // len(samples)
    return ModelShowers(
        *(np.concatenate([getattr(one, name)[:each] for one in samples]) for name in ("table", "labels"))
    )


def share_bias(
    ours: np.ndarray, labels: np.ndarray, theirs: np.ndarray, their_labels: np.ndarray, prior: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return found minus true shares (C,), and their errors from both samples' statistics.

    Parameters
    ----------
    ours, labels
        (N, C) log-posteriors of the showers that are measured, and their true classes.
    theirs, their_labels
        The same of the simulated showers that give the response.
    prior
        (C,) shares of the training showers.
    """
    ratios, response = likelihood_ratios(ours, prior), likelihood_ratios(theirs, prior)
    at = np.maximum(maximum_likelihood(ratios), LEAST_SHARE)
    at /= at.sum()
    g, s = estimating_functions(ratios, at), estimating_functions(response, at)
    classes = range(len(at))
    inverse = np.linalg.inv(np.stack([s[their_labels == k].mean(axis=0) for k in classes], axis=1))
    found = inverse @ g.mean(axis=0)
    # The measured shares are those of the very showers: only the scatter of g within each class counts.
    within = np.concatenate([g[labels == k] - g[labels == k].mean(axis=0) for k in classes])
    spread = within.T @ within / len(g) ** 2
    for k in classes:
        spread = spread + found[k] ** 2 * np.cov(s[their_labels == k], rowvar=False) / (their_labels == k).sum()
    truth = np.bincount(labels, minlength=len(at)) / len(labels)
    return found - truth, np.sqrt(np.diag(inverse @ spread @ inverse.T))


def biases(
    known: list[ModelShowers], response: list[ModelShowers], nature: ModelShowers
) -> tuple[np.ndarray, np.ndarray]:
    """Train on what is known, and return the bias of the shares of nature with its errors, (C,) each."""
    train = joined(known, len(known[0].labels))
    # Posteriors have to be calibrated: those of trees on so few showers are too sure, and the response singular.
    model = make_pipeline(
        StandardScaler(), PolynomialFeatures(2, include_bias=False), StandardScaler(), LogisticRegression(max_iter=300)
    )
    model.fit(train.table, train.labels)
    there = joined(response, len(response[0].labels))
    posteriors = (np.log(np.maximum(model.predict_proba(one.table), 1e-12)) for one in (nature, there))
    ours, theirs = posteriors
    prior = np.bincount(train.labels, minlength=COMPOSITION.n_classes) / len(train.labels)
    return share_bias(ours, nature.labels, theirs, there.labels, prior)


def lines_of(name: str, models: tuple[str, ...], train: int, test: int, work: Path, seed: int) -> list[str]:
    """Return a set's table as lines of Markdown."""
    known = {model: sample_of(model, SPLITS[0], train, work, seed) for model in models}
    tests = {model: sample_of(model, SPLITS[1], test, work, seed) for model in models}
    control = {model: sample_of(model, SPLITS[1], test, work, seed + 1) for model in models}
    classes = COMPOSITION.classes
    lines = [
        f"## {name[0].upper()}{name[1:]}", "",
        f"| nature | training and response | {' | '.join(classes)} | mean of absolute values |",
        f"|---|---|{'---|' * (len(classes) + 1)}",
    ]  # fmt: skip
    means: dict[str, list[float]] = {}
    seen = 0
    for nature in models:
        others = [model for model in models if model != nature]
        ways = {"the others": others, **{model: [model] for model in others}, "nature itself": [nature]}
        for way, chosen in ways.items():
            response = [(control if model == nature else tests)[model] for model in chosen]
            bias, error = biases([known[model] for model in chosen], response, tests[nature])
            far = np.abs(bias / error) > SEEN
            kind = way if way in ("the others", "nature itself") else "one other"
            means.setdefault(kind, []).append(100 * float(np.abs(bias).mean()))
            seen += int(far.any()) if kind == "the others" else 0
            cells = [
                f"**{100 * b:+.1f} ± {100 * e:.1f}**" if f else f"{100 * b:+.1f} ± {100 * e:.1f}"
                for b, e, f in zip(bias, error, far, strict=True)
            ]
            lines.append(f"| {nature} | {way} | {' | '.join(cells)} | {100 * np.abs(bias).mean():.2f} |")
    summary = "; ".join(f"{k} {np.mean(v):.2f} % ({min(v):.2f} to {max(v):.2f})" for k, v in means.items())
    off = f"With the others known, a share is off by more than {SEEN:g} errors for {seen} of {len(models)} natures."
    return [*lines, "", f"Mean of the absolute biases: {summary}. {off}", ""]


def main() -> None:
    """Do the study, print and store the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path("bench/nature"))
    parser.add_argument("--train", type=int, default=12_000, help="training showers of each model")
    parser.add_argument("--test", type=int, default=12_000, help="showers of each nature, and of each response")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--store", action="store_true", help=HELP)
    given = parser.parse_args()
    text = "\n".join(
        [
            f"Each model was nature once: {given.train:,} training showers, {given.test:,} of nature and of the",
            f"response, default world, test's cuts, a quadratic logit of {len(COLUMNS)} numbers, one seed.",
            f"Measured minus true share in per cent ± one standard error, bold beyond {SEEN:g}.",
            "",
            *(line for name, models in SETS.items()
              for line in lines_of(name, models, given.train, given.test, given.work, given.seed)),
        ]
    )  # fmt: skip
    print(text)
    if given.store:
        store("hadronic_nature", "If nature is another hadronic model", text)


if __name__ == "__main__":
    main()
