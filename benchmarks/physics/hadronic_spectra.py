"""Do errors of spectra hold where nature is a hadronic model that neither training nor response know?

``python -m benchmarks.physics.hadronic_spectra --work bench/hadronic`` lets each hadronic model of the cascade Monte
Carlo, and the shifts of ``simulate --model mix`` together, be nature once. The response is that of the four others,
with their showers simulated and predicted again as the analysis does; the network was trained on the shifts. A sky is
drawn from showers of nature alone, each used once, and goes through the whole analysis. Sets, predictions and finished
skies are kept: started again, the benchmark goes on.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.physics.closure import ZENITH_MAX_DEG, closure_parser, trained
from benchmarks.physics.pseudo_experiments import mean_fluxes, pull_counts
from benchmarks.physics.resimulated import BINS, SKY, WIDTHS, drawn_sky
from benchmarks.shared.results import HELP, store
from benchmarks.shared.samples import sample
from showerstack.analysis.events import open_run
from showerstack.analysis.spectra.fluxes import SOURCES, STATISTICAL, share_covariance, shares
from showerstack.analysis.spectra.folding import make_cells
from showerstack.analysis.spectra.reading import Response, read_response
from showerstack.analysis.spectra.result import KNOWN_SOURCES, Spectra
from showerstack.analysis.spectra.run import EDGES, folded_spectra
from showerstack.runtime.context import Context, bar
from showerstack.showers.schema import COMPOSITION
from showerstack.showers.simulation.monte_carlo import CASCADES

NATURES = (*CASCADES, "mix")
RESPONSE_SEED, NATURE_SEED = 2_000, 3_000
ERRORS = {"events and simulation": STATISTICAL, "and scales": KNOWN_SOURCES, "and hadronic models": SOURCES}


def entry_of(spectra: Spectra) -> dict[str, Any]:
    """Return pulls of fluxes and shares by sources of error, and errors over those of the statistics."""
    flux, true = spectra.fluxes.flux, mean_fluxes(SKY, spectra.fluxes.edges)
    result: dict[str, Any] = {}
    least = np.sqrt(np.diag(share_covariance(flux, spectra.covariance(STATISTICAL))))
    for name, sources in ERRORS.items():
        covariance = spectra.covariance(sources)
        if not np.isfinite(covariance).all():
            continue
        error = np.sqrt(np.diag(share_covariance(flux, covariance)))
        result[name] = {
            "flux": pull_counts(flux, true, np.sqrt(np.diag(covariance)).reshape(true.shape)),
            "share": pull_counts(shares(flux), shares(true), error.reshape(true.shape)),
            "larger": float(np.median(error / least)),
        }
    return result


def table(done: list[dict[str, Any]]) -> str:
    """Return a row for each nature and for all, as Markdown."""
    lines = [
        "| nature | skies | events | errors of | fluxes in 68, 95 % | shares in 68, 95 % | times statistical error |",
        "|---|---|---|---|---|---|---|",
    ]
    for nature in (*NATURES, "all"):
        mine = [one for one in done if nature in ("all", one["nature"]) and not one["refused"]]
        for name in ERRORS:
            found = [one["found"][name] for one in mine if name in one["found"]]
            if not found:
                continue
            cells = []
            for quantity in ("flux", "share"):
                held = np.array(
                    [[one[quantity][level] / one[quantity]["n"] for level in ("in68", "in95")] for one in found]
                )
                spread = [
                    f" ± {100 * each.std(ddof=1) / np.sqrt(len(held)):.0f}" if len(held) > 1 else "" for each in held.T
                ]
                cells.append(", ".join(f"{100 * h:.0f}{e}" for h, e in zip(held.mean(axis=0), spread, strict=True)))
            events = np.mean([one["events"] for one in mine])
            larger = np.mean([one["larger"] for one in found])
            lines.append(f"| {nature} | {len(found)} | {events:,.0f} | {name} | {' | '.join(cells)} | {larger:.2f} |")
    refused = [f"{one['nature']} ({one['refused']})" for one in done if one["refused"]]
    return "\n".join([*lines, "", f"Refused: {', '.join(refused) or 'none'}."])


def main() -> None:
    """Do what is missing, as long as there is time, and print the table."""
    parser = closure_parser(__doc__ or "")
    parser.add_argument("--response", type=int, default=60_000, help="showers of each model of the response")
    parser.add_argument("--showers", type=int, default=100_000, help="of each nature, from which a sky is drawn")
    parser.add_argument("--seeds", type=int, default=2, help="skies of each nature")
    parser.add_argument("--minutes", type=float, default=1e9, help="stop after this time; start again to go on")
    parser.add_argument("--store", action="store_true", help=HELP)
    given = parser.parse_args()
    stop = time.monotonic() + 60 * given.minutes
    given.work.mkdir(parents=True, exist_ok=True)
    file, keep = given.work / "skies.jsonl", given.work / "predictions"
    done = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    keys = {(one["nature"], one["seed"]) for one in done}
    missing = [(seed, nature) for seed in range(given.seeds) for nature in NATURES if (nature, seed) not in keys]
    if missing and time.monotonic() < stop:
        run, _ = trained(COMPOSITION, given)
        opened, ctx = open_run(run, COMPOSITION.name, "hadronic_spectra"), Context(bars=bar)

        def made(model: str, showers: int, seed: int) -> Path:
            folder = sample(
                COMPOSITION,
                given.work,
                n_train=1,
                n_test=showers,
                seed=seed,
                model=model,
                workers=given.workers,
                bars=bar,
            )
            return folder / f"{COMPOSITION.name}_test"

        def read(folders: list[Path], moved: bool) -> Response:
            return read_response(opened, folders, [], BINS, ZENITH_MAX_DEG, ctx, keep, moved=moved)

        for seed, nature in missing:
            if time.monotonic() > stop:
                print(f"stopped after {given.minutes:g} minutes: start again to go on")
                break
            others = [model for model in NATURES if model != nature]
            known = read([made(model, given.response, RESPONSE_SEED) for model in others], True)
            cells = make_cells(BINS, known.passing)
            pool = read([made(nature, given.showers, NATURE_SEED + seed)], False)
            sky, exposure = drawn_sky(pool, cells, 0.0, seed)
            spectra = folded_spectra(
                sky, known.events, known.thrown.counts, cells, np.array(EDGES), exposure, widths=WIDTHS,
                sharpness=SKY.sharpness, seed=seed,
            )  # fmt: skip
            entry = {
                "nature": nature, "seed": seed, "events": len(sky), "p_value": spectra.p_value,
                "refused": spectra.fit.refusal, "remarks": list(spectra.remarks), "found": entry_of(spectra),
            }  # fmt: skip
            done.append(entry)
            with file.open("a", encoding="utf-8") as out:
                out.write(json.dumps(entry) + "\n")
    if done:
        print(table(done))
        if given.store:
            store("hadronic_spectra", "Spectra of a nature of another hadronic model", table(done))


if __name__ == "__main__":
    main()
