"""Do stated errors cover where showers are simulated and predicted again with other scales, or another hadronic model?

``python -m benchmarks.physics.resimulated --work bench/resimulated`` trains a quick run in the default world, and takes
the response from a set of that world as the analysis would. The skies come from sets of their own, one for each point
and seed: electron and muon numbers off by 0, 1 and 2 widths of their scales in the world itself, the true energy below
what the showers look like by as many widths of its scale, or all showers by a hadronic model that neither training nor
response know. Features, posteriors and cuts are those of the moved showers; nothing is moved by the analysis's own
function. Every shower is used in one sky at most. Finished skies are kept in ``WORK/skies.jsonl``: started again, the
benchmark goes on. It prints Markdown tables: of all skies, and the true and measured fluxes of the first.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.physics.closure import ZENITH_MAX_DEG, closure_parser, trained
from benchmarks.physics.pseudo_experiments import SUB_STEPS, mean_fluxes, pull_counts
from benchmarks.shared.experiments import Experiments
from benchmarks.shared.results import store
from benchmarks.shared.samples import sample
from showerstack.analysis.events import open_run
from showerstack.analysis.spectra.fluxes import SOURCES, share_covariance, shares
from showerstack.analysis.spectra.folding import Cells, Widths, make_cells
from showerstack.analysis.spectra.reading import Response, read_response
from showerstack.analysis.spectra.response import FIVE, Simulated, SpectrumEvents
from showerstack.analysis.spectra.result import KNOWN_SOURCES, Spectra
from showerstack.analysis.spectra.run import EDGES, cell_binning, folded_spectra
from showerstack.runtime.context import Context, bar
from showerstack.scoring.metrics.level import CHI_SQUARE_LEVELS
from showerstack.showers.schema import COMPOSITION
from showerstack.showers.simulation import load_settings
from showerstack.showers.simulation.sky import Sky

BINS = cell_binning(EDGES)
SKY = Sky(flux_1_pev=6e-21, sharpness=5.0)
WIDTHS = Widths()
FIRST_SEED = 1_000
"""Of the sets that skies are drawn from."""


@dataclass(frozen=True)
class Nature:
    """What makes the showers of a sky differ from those of the analysis's simulation."""

    kind: str
    widths: int = 0
    model: str = "mix"

    @property
    def name(self) -> str:
        """Words of the table."""
        return self.kind if not self.widths else f"{self.kind} {self.widths:+d}"

    def world(self, work: Path) -> str:
        """Return the name of its world, or a file of its constants."""
        field = {"electrons": "lg_ne_offset", "muons": "lg_nmu_offset"}.get(self.kind)
        if field is None:
            return "default"
        width = WIDTHS.lg_electron if self.kind == "electrons" else WIDTHS.lg_muon
        value = getattr(load_settings().cascade, field) + self.widths * width
        file = work / f"{self.kind}{self.widths:+d}.toml"
        file.write_text(f"[cascade]\n{field} = {value:.6f}\n", encoding="utf-8")
        return str(file)

    @property
    def energy_shift(self) -> float:
        """How far lg E of a shower lies below that of which it looks."""
        return self.widths * WIDTHS.lg_energy if self.kind == "energy" else 0.0


NATURES = (
    Nature("as simulated"),
    *(Nature(kind, k) for k in (2, -2) for kind in ("energy", "electrons", "muons")),
    Nature("another hadronic model", model="sibyll"),
    *(Nature(kind, k) for k in (1, -1) for kind in ("energy", "electrons", "muons")),
)


def weights(events: Simulated, thrown: np.ndarray, shift: float) -> np.ndarray:
    """Return how many showers of the sky each simulated one (N,) stands for, for an exposure of 1 m2 sr s."""
    fine = BINS.fine
    inner = fine[:-1, None] + np.diff(fine)[:, None] * (np.arange(SUB_STEPS) + 0.5) / SUB_STEPS - shift
    flux = SKY.flux(inner.ravel())[:5].reshape(5, -1, SUB_STEPS)
    particles = (flux * 10.0**inner).mean(axis=2) * np.log(10.0) * np.diff(fine)
    each = np.divide(particles, thrown, out=np.zeros_like(particles), where=thrown > 0)
    assert events.true_lg_energy is not None
    return np.asarray(each[events.labels, BINS.fine_bin_of(events.true_lg_energy)])


def drawn_sky(pool: Response, cells: Cells, shift: float, seed: int) -> tuple[SpectrumEvents, float]:
    """Draw the largest sky that uses every shower once, and return its exposure."""
    events = pool.passing
    weight = weights(events, pool.thrown.counts.sum(axis=0), shift)
    counted = cells.bins.bin_of(events.lg_energy) >= 0
    exposure = 1.0 / float(weight[counted].max())
    rows = np.flatnonzero(counted & (np.random.default_rng(seed).random(len(weight)) < weight * exposure))
    drawn = events.take(rows)
    return SpectrumEvents(**{one.name: getattr(drawn, one.name) for one in fields(SpectrumEvents)}), exposure


def analysed(
    pool: Response, known: Response, shift: float, seed: int, *, knees: bool
) -> tuple[Spectra, dict[str, Any]]:
    """Draw a sky from a pool of nature's showers, unfold it with the known response; return what is kept of it too."""
    cells = make_cells(BINS, known.passing)
    sky, exposure = drawn_sky(pool, cells, shift, seed)
    spectra = folded_spectra(
        sky, known.events, known.thrown.counts, cells, np.array(EDGES), exposure, widths=WIDTHS,
        sharpness=SKY.sharpness, seed=seed, knees=knees,
    )  # fmt: skip
    refused, remarks = spectra.fit.refusal, list(spectra.remarks)
    return spectra, {"events": len(sky), "p_value": spectra.p_value, "refused": refused, "remarks": remarks}


def covered(spectra: Spectra) -> dict[str, Any]:
    """Return pulls of fluxes and shares, and whether the profile of the common rigidity holds the truth."""
    true, flux = mean_fluxes(SKY, spectra.fluxes.edges), spectra.fluxes.flux
    result: dict[str, Any] = {}
    for name, sources in (("own", KNOWN_SOURCES), ("total", SOURCES)):
        covariance = spectra.covariance(sources)
        error = np.sqrt(np.diag(covariance)).reshape(flux.shape)
        of_shares = np.sqrt(np.diag(share_covariance(flux, covariance))).reshape(flux.shape)
        result[f"flux_{name}"] = pull_counts(flux, true, error)
        result[f"share_{name}"] = pull_counts(shares(flux), shares(true), of_shares)
    lg = float(np.log10(SKY.knee_pev * 1e15))
    assert spectra.knees is not None
    knee = spectra.knees.rigidity
    away = float(np.interp(lg, knee.grid, knee.profile, left=np.inf, right=np.inf))
    result["rigidity"] = {"off": knee.lg_energy - lg, "covers": [away < level for level in CHI_SQUARE_LEVELS]}
    return result


def main() -> None:
    """Do what is missing, as long as there is time, and print the table."""
    parser = closure_parser(__doc__ or "")
    parser.add_argument("--showers", type=int, default=200_000, help="from which a sky is drawn")
    parser.add_argument("--seeds", type=int, default=2, help="skies of each nature")
    parser.add_argument("--natures", type=int, default=len(NATURES), help="the first of them, in the table's order")
    given = parser.parse_args()
    skies = Experiments(given.work / "skies.jsonl", given.minutes)
    natures = {one.name: one for one in NATURES[: given.natures]}
    wanted = [{"nature": name, "seed": seed} for seed in range(given.seeds) for name in natures]
    if skies.missing(wanted):
        run, test = trained(COMPOSITION, given)
        opened, ctx = open_run(run, COMPOSITION.name, "resimulated"), Context(bars=bar)

        def read(folder: Path) -> Response:
            return read_response(opened, [folder], [], BINS, ZENITH_MAX_DEG, ctx, given.work / "predictions")

        known = read(test)
        for one in skies.each(wanted):
            nature, seed = natures[one["nature"]], one["seed"]
            folder = sample(
                COMPOSITION, given.work, n_train=1, n_test=given.showers, seed=FIRST_SEED + seed, model=nature.model,
                world=nature.world(given.work), workers=given.workers, bars=bar,
            )  # fmt: skip
            pool = read(folder / "composition_test")
            spectra, kept = analysed(pool, known, nature.energy_shift, seed, knees=True)
            scales, fluxes = spectra.fit.scales.tolist(), beside_truth(spectra)
            skies.keep({**one, **kept, "scales": scales, "fluxes": fluxes, **covered(spectra)})
            if nature.kind not in ("as simulated", "energy"):  # these share their showers
                shutil.rmtree(folder)
    text = table(skies.done) + ("\n" + flux_table(skies.done[0]["fluxes"]) if skies.done else "")
    print(text)
    if given.store:
        store("resimulated", "Spectra of showers simulated again", text)


def beside_truth(spectra: Spectra) -> list[list[Any]]:
    """Return borders of lg(E/eV), the group, the true flux, the measured one, its statistical and its total error."""
    names = ("flux", "flux_error_statistical", "flux_error_total")
    columns = ("lg_energy_low_eV", "lg_energy_high_eV", "group", *(f"{name}_m2_sr_s_eV" for name in names))
    rows = []
    for low, high, group, *found in spectra.table().select(columns).iter_rows():
        (true,) = mean_fluxes(SKY, np.array([low, high])) @ FIVE.members[group]
        rows.append([low, high, group, float(true), *found])
    return rows


def flux_table(rows: list[list[Any]]) -> str:
    """Return a row for each bin of energy and group."""
    lines = [
        "| lg(E/eV) | group | true flux | measured | statistical error | total error |",
        "|---|---|---|---|---|---|",
    ]
    for low, high, group, *values in rows:
        cells = [f"{low:.1f}..{high:.1f}", group, *("" if value is None else f"{value:.3e}" for value in values)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def table(done: list[dict[str, Any]]) -> str:
    """Return a row for each nature, and one for all moved scales."""
    lines = [
        "| nature | skies | events | fluxes in 68, 95 % | shares in 68, 95 % | fluxes with the models' error | "
        "knee in 68, 95 % | mean flux pull | smallest p of the fit |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    moved = [one.name for one in NATURES if one.widths]
    rows = [(one.name, [one.name]) for one in NATURES] + [
        (f"all scales ± {k}", [name for name in moved if name.endswith(str(k))]) for k in (1, 2)
    ]
    for name, members in rows:
        mine = [one for one in done if one["nature"] in members]
        if not mine:
            continue
        knee = np.array([one["rigidity"]["covers"] for one in mine]).sum(axis=0)
        pull = sum(one["flux_own"]["pull"] for one in mine) / sum(one["flux_own"]["n"] for one in mine)
        cells = (
            name, str(len(mine)), f"{np.mean([one['events'] for one in mine]):,.0f}", inside(mine, "flux_own"),
            inside(mine, "share_own"), inside(mine, "flux_total"),
            ", ".join(f"{k} of {len(mine)}" for k in knee), f"{pull:+.2f}",
            f"{min(one['p_value'] for one in mine):.2g}",
        )  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def inside(mine: Sequence[dict[str, Any]], what: str) -> str:
    """Return shares of numbers inside their 68 and 95 % intervals, with their spread between skies."""
    words = []
    for level in ("in68", "in95"):
        held = np.array([one[what][level] / one[what]["n"] for one in mine])
        error = f" ± {100 * held.std(ddof=1) / np.sqrt(len(held)):.0f}" if len(held) > 1 else ""
        words.append(f"{100 * held.mean():.0f}{error}")
    return ", ".join(words)


if __name__ == "__main__":
    main()
