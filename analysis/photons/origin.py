"""Labelled gammas and hadrons with what really happened to them, and how gamma-like each looks.

How a shower looks is the score of boosted trees on the columns of the feature set ``fits``, fitted on the spot to other
showers of the same files (cross-fitting, copies of one shower together). So the check needs nothing but the files, no
trained run, and no shower is scored by trees that learned its own label. Both classes weigh alike in the fit: the score
is ln of the ratio of the two densities, and below 0 a shower looks like a hadron.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path

import numpy as np
import polars as pl

from showerstack.features.catalogue import GROUPS, SETS, feature_set
from showerstack.features.compute import compute_events
from showerstack.runtime.context import Context
from showerstack.runtime.errors import InputError, did_you_mean
from showerstack.showers import protocols
from showerstack.showers.archives.convert import true_quantities
from showerstack.showers.archives.raw import RAW_COLUMNS, TRUE_COLUMNS, TRUTH_KIND, SimulatedReader, sets_in
from showerstack.showers.dataset import Dataset
from showerstack.showers.event_files import bad_cells
from showerstack.showers.protocols import MODES
from showerstack.showers.schema import AGE, GAMMA, MATRICES_FILE, SCALAR_NAMES, TRUTH_FILE
from showerstack.showers.simulation.primaries import MODELS

GAMMA_LABEL, HADRON_LABEL = 0, 1
FEATURES = "fits"
NEEDED = ("lg_energy", "lg_ne", "lg_nmu")
"""True quantities without which nothing can be said."""
LEAST = 100
"""Gammas, and hadrons, under the cuts that the check takes at least."""
FOLDS = 5
ROUNDS = 200
PARAMETERS = {
    "objective": "binary", "learning_rate": 0.05, "num_leaves": 15, "min_data_in_leaf": 40, "feature_fraction": 0.3,
    "bagging_fraction": 0.8, "bagging_freq": 1, "lambda_l2": 10.0, "deterministic": True, "force_col_wise": True,
    "verbose": -1,
}  # fmt: skip
EVENTS_AT_ONCE = 8_192


@dataclass(frozen=True)
class TrueShowers:
    """Showers under the test's cuts; (N,) each."""

    gamma: np.ndarray
    """bool: labelled as gamma."""
    weight: np.ndarray
    """Importance weight, 1 each where there are none."""
    group: np.ndarray
    """int64: equal where one shower was thrown again."""
    model: np.ndarray
    """Name of the hadronic model, or of the raw mode."""
    lg_energy: np.ndarray
    """True lg(E/eV)."""
    secant: np.ndarray
    """sec of the true zenith angle; of the reconstructed one where the truth has none."""
    lg_ne: np.ndarray
    """True lg Ne at the ground."""
    lg_nmu: np.ndarray
    """True lg Nmu at the ground."""
    lg_nhadron: np.ndarray
    """True lg of the number of hadrons at the ground; minus infinity: none; NaN: unknown."""
    reconstructed_lg_nmu: np.ndarray
    """Reconstructed lg Nmu."""
    score: np.ndarray
    """How gamma-like it looks, ln of a ratio of densities."""

    def __len__(self) -> int:
        return len(self.gamma)

    def take(self, rows: np.ndarray) -> TrueShowers:
        """Return some of the showers, (N,) bool or positions."""
        return TrueShowers(**{one.name: getattr(self, one.name)[rows] for one in fields(self)})


@dataclass(frozen=True)
class Labelled:
    """What was read of a folder or of archives."""

    showers: TrueShowers
    n_read: int
    """Showers before the cuts."""
    mislabelled: int | None
    """Showers whose label is not that of their true particle; None where particles are not known."""
    remarks: tuple[str, ...] = ()


@dataclass
class _Parts:
    """Pieces of showers as they are read."""

    columns: tuple[str, ...] = ()
    features: list[np.ndarray] = field(default_factory=list)
    frames: list[pl.DataFrame] = field(default_factory=list)
    n_read: int = 0
    left_out: int = 0
    mislabelled: int | None = 0

    def add(self, grids: np.ndarray, scalars: np.ndarray, frame: pl.DataFrame) -> None:
        """Add showers (n,) that pass the cuts; those that cannot be used are left out."""
        good = np.isfinite(scalars).all(axis=1) & np.isfinite(frame.select(NEEDED).to_numpy()).all(axis=1)
        good[[bad.row for bad in bad_cells(grids, "")]] = False
        self.left_out += int(np.count_nonzero(~good))
        if not good.any():
            return
        groups = frozenset(SETS[FEATURES]) & frozenset(GROUPS)
        table = compute_events(np.ascontiguousarray(grids[good]), scalars[good], None, groups)
        self.columns = feature_set(FEATURES, table.columns)
        self.features.append(table.select(self.columns).to_numpy().astype(np.float32))
        self.frames.append(
            frame.filter(pl.Series(good)).with_columns(pl.Series("reconstructed_lg_nmu", scalars[good, 4]))
        )


def read_labelled(path: Path, *, seed: int = 1, ctx: Context = Context()) -> Labelled:
    """Read gammas and hadrons under the test's cuts, with their true quantities and scores.

    Parameters
    ----------
    path
        Raw archives of the public form (gamma modes, ``{mode}_true_features.npz`` with them), a labelled gamma dataset
        folder with ``truth.parquet``, or a folder that holds ``gamma_train`` or ``gamma_test``.
    seed
        Of the folds and the trees.
    ctx
        Progress.

    Raises
    ------
    InputError
        If there are neither archives nor folders, no true quantities, or too few showers under the cuts.
    """
    path = Path(path)
    if not path.is_dir():
        raise InputError(f"{path} is no folder{did_you_mean(path)}: expected raw archives or a gamma dataset")
    inside = (path, *(path / f"{GAMMA.name}_{split}" for split in ("train", "test")))
    folders = [folder for folder in inside if (folder / MATRICES_FILE).exists()]
    parts, remarks = _Parts(), []
    if folders:
        for folder in folders:
            _read_folder(folder, parts, ctx)
    else:
        modes = [mode for mode in MODES["v2", GAMMA.name] if mode in sets_in(path)]
        if not modes:
            raise InputError(
                f"{path} holds neither a dataset folder nor a gamma mode ({', '.join(MODES['v2', GAMMA.name])}): "
                "name a folder that does"
            )
        for number, mode in enumerate(modes):
            _read_mode(path, mode, number, parts, ctx)
        lacking = [mode for mode in MODES["v2", GAMMA.name] if mode not in modes]
        remarks += [f"without {', '.join(lacking)}, which {path} does not hold"] if lacking else []
    if parts.left_out:
        remarks.append(f"{parts.left_out:,} showers under the cuts are left out: a cell or a quantity is no number")
    frame = pl.concat(parts.frames) if parts.frames else None
    n_gamma = 0 if frame is None else int((frame["label"] == GAMMA_LABEL).sum())
    n_hadron = 0 if frame is None else len(frame) - n_gamma
    if frame is None or min(n_gamma, n_hadron) < LEAST:
        raise InputError(
            f"{path}: {n_gamma:,} gammas and {n_hadron:,} hadrons with known truth pass the cuts, {LEAST} of each are "
            "needed"
        )
    x = np.concatenate(parts.features)
    gamma, weight = (frame["label"] == GAMMA_LABEL).to_numpy(), frame["weight"].to_numpy()
    group = frame["group"].to_numpy()
    names = ("lg_energy", "secant", "lg_ne", "lg_nmu", "lg_nhadron", "reconstructed_lg_nmu")
    columns = {name: frame[name].to_numpy().astype(np.float64) for name in names}
    showers = TrueShowers(
        gamma=gamma, weight=weight, group=group, model=frame["model"].to_numpy().astype(str),
        score=scores(x, gamma, weight, group, seed=seed), **columns,
    )  # fmt: skip
    return Labelled(showers, parts.n_read, parts.mislabelled, tuple(remarks))


def scores(x: np.ndarray, gamma: np.ndarray, weight: np.ndarray, group: np.ndarray, *, seed: int) -> np.ndarray:
    """Return the scores (N,) of showers by trees that learned from others.

    Parameters
    ----------
    x
        (N, F) float32 features.
    gamma, weight, group
        (N,) labels, importance weights, and numbers that copies of one shower share.
    """
    import lightgbm

    rng = np.random.default_rng(seed)
    _, shower = np.unique(group, return_inverse=True)
    fold = rng.permutation(int(shower.max()) + 1)[shower] % FOLDS
    result = np.empty(len(x))
    for k in range(FOLDS):
        learning = fold != k
        w = weight[learning].copy()
        for of_class in (gamma[learning], ~gamma[learning]):
            w[of_class] *= np.count_nonzero(gamma[learning]) / w[of_class].sum()
        data = lightgbm.Dataset(x[learning], gamma[learning].astype(int), weight=w)
        trees = lightgbm.train({**PARAMETERS, "seed": seed + k, "num_threads": 1}, data, num_boost_round=ROUNDS)
        result[~learning] = np.asarray(trees.predict(x[~learning], raw_score=True, num_threads=1))
    return result


def _read_mode(path: Path, mode: str, number: int, parts: _Parts, ctx: Context) -> None:
    """Read one mode of raw archives."""
    reader = SimulatedReader.open(path, mode)
    if not reader.has_truth:
        raise InputError(f"{reader.path(TRUTH_KIND)} is missing: true Ne and Nmu are what gammacheck looks at")
    features, truth = reader.read("features"), reader.read(TRUTH_KIND)
    kinds = features[:, RAW_COLUMNS.index("type")]
    scalars = np.column_stack([features[:, RAW_COLUMNS.index(name)] for name in SCALAR_NAMES]).astype(np.float32)
    cuts = protocols.TEST_WITH_AGE.mask(
        protocols.scalar_frame(scalars, features[:, RAW_COLUMNS.index(AGE.name)])
    ) & np.isin(kinds, (GAMMA_LABEL, HADRON_LABEL))
    ids = truth[:, TRUE_COLUMNS.index("id")]
    if parts.mislabelled is not None:
        parts.mislabelled += int(np.count_nonzero(cuts & ((kinds == GAMMA_LABEL) != (ids == 1))))
    thrown = [truth[:, TRUE_COLUMNS.index(name)] for name in ("E", "Ze", "Az", "Ne", "Nmu")]
    # Copies of one shower have all these in common; the number of the mode keeps modes apart.
    _, copies = np.unique(np.column_stack(thrown), axis=0, return_inverse=True)
    frame = _frame(true_quantities(truth), kinds, scalars, np.full(len(truth), mode)).with_columns(
        group=copies.reshape(-1).astype(np.int64) + (number << 40), weight=pl.lit(1.0)
    )
    parts.n_read += len(kinds)
    _pieces(parts, reader.stream("matrices", EVENTS_AT_ONCE), scalars, cuts, frame, mode, ctx)


def _read_folder(folder: Path, parts: _Parts, ctx: Context) -> None:
    """Read one dataset folder."""
    data = Dataset.open(folder, GAMMA)
    assert data.labels is not None
    if not data.has_truth:
        raise InputError(
            f"{folder} has no {TRUTH_FILE}: true Ne and Nmu are what gammacheck looks at; convert raw archives "
            "with their true features, or simulate a set"
        )
    file = data.files.path(TRUTH_FILE)
    try:
        truth = pl.read_parquet(file, glob=False)
    except (pl.exceptions.PolarsError, OSError) as error:
        raise InputError(f"{file} cannot be read as Parquet: {' '.join(str(error).split())[:120]}") from None
    lacking = [name for name in NEEDED if name not in truth.columns]
    if lacking or len(truth) != len(data):
        what = f"no column {', '.join(lacking)}" if lacking else f"{len(truth):,} rows for {len(data):,} showers"
        raise InputError(f"{file} has {what}: convert or simulate the set again")
    scalars = np.asarray(data.scalars, dtype=np.float32)
    model = truth["model"].to_numpy() if "model" in truth.columns else np.full(len(truth), "")
    if model.dtype.kind in "iu":
        model = np.array(list(MODELS))[model]
    parts.mislabelled = None  # a folder's labels and particles are made from the same column
    number = sum(len(one) for one in parts.frames)
    group = np.arange(len(data)) if data.groups is None else np.asarray(data.groups)
    frame = _frame(truth, np.asarray(data.labels), scalars, model).with_columns(
        group=pl.Series(group.astype(np.int64) + (number << 32)),
        weight=pl.Series(np.ones(len(data)) if data.weights is None else data.weights),
    )
    parts.n_read += len(data)
    cuts = data.evaluation_cuts.mask(data.scalar_frame()) & data.usable
    blocks = (np.asarray(data.matrices[k : k + EVENTS_AT_ONCE]) for k in range(0, len(data), EVENTS_AT_ONCE))
    _pieces(parts, blocks, scalars, cuts, frame, folder.name, ctx)


def _frame(truth: pl.DataFrame, labels: np.ndarray, scalars: np.ndarray, model: np.ndarray) -> pl.DataFrame:
    """Return labels, models and true quantities; unknown ones are NaN."""
    zenith = truth["zenith_deg"].to_numpy() if "zenith_deg" in truth.columns else scalars[:, 1]
    hadrons = truth["lg_nhadron"].to_numpy() if "lg_nhadron" in truth.columns else np.full(len(truth), np.nan)
    known = {name: truth[name].cast(pl.Float64).fill_null(np.nan) for name in NEEDED}
    return pl.DataFrame(
        {"label": labels.astype(np.int8), "model": np.asarray(model).astype(str), **known}
        | {"secant": 1.0 / np.cos(np.radians(zenith.astype(np.float64))), "lg_nhadron": hadrons.astype(np.float64)}
    )


def _pieces(
    parts: _Parts,
    blocks: Iterator[np.ndarray],
    scalars: np.ndarray,
    cuts: np.ndarray,
    frame: pl.DataFrame,
    name: str,
    ctx: Context,
) -> None:
    """Go once through the grids."""
    start = 0
    with ctx.bars(f"reading {name}", "events") as progress:
        for block in blocks:
            rows = start + np.flatnonzero(cuts[start : start + len(block)])
            if len(rows):
                grids = np.asarray(block[rows - start][..., -2:], dtype=np.float32)
                parts.add(grids, scalars[rows], frame[rows])
            start += len(block)
            progress(start, len(cuts))
