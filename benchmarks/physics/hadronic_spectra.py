"""Do errors of spectra hold where nature is a hadronic model that neither training nor response know?

``python -m benchmarks.physics.hadronic_spectra --work bench/hadronic`` lets each hadronic model of the cascade Monte
Carlo, and the shifts of ``simulate --model mix`` together, be nature once. The response is that of the four others,
with their showers simulated and predicted again as the analysis does; the network was trained on the shifts. A sky is
drawn from showers of nature alone, each used once, and goes through the whole analysis. Sets, predictions and finished
skies are kept: started again, the benchmark goes on.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.physics.closure import ZENITH_MAX_DEG, closure_parser, trained
from benchmarks.physics.pseudo_experiments import mean_fluxes, pull_counts
from benchmarks.physics.resimulated import BINS, SKY, analysed, inside
from benchmarks.shared.experiments import Experiments
from benchmarks.shared.results import store
from benchmarks.shared.samples import sample
from showerstack.analysis.events import open_run
from showerstack.analysis.spectra.fluxes import SOURCES, STATISTICAL, share_covariance, shares
from showerstack.analysis.spectra.reading import Response, read_response
from showerstack.analysis.spectra.result import KNOWN_SOURCES, Spectra
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
            cells = [inside(found, quantity) for quantity in ("flux", "share")]
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
    given = parser.parse_args()
    skies, keep = Experiments(given.work / "skies.jsonl", given.minutes), given.work / "predictions"
    wanted = [{"nature": nature, "seed": seed} for seed in range(given.seeds) for nature in NATURES]
    if skies.missing(wanted):
        run, _ = trained(COMPOSITION, given)
        opened, ctx = open_run(run, COMPOSITION.name, "hadronic_spectra"), Context(bars=bar)

        def made(model: str, showers: int, seed: int) -> Path:
            options = {"seed": seed, "model": model, "workers": given.workers, "bars": bar}
            folder = sample(COMPOSITION, given.work, n_train=1, n_test=showers, **options)
            return folder / f"{COMPOSITION.name}_test"

        def read(folders: list[Path], moved: bool) -> Response:
            return read_response(opened, folders, [], BINS, ZENITH_MAX_DEG, ctx, keep, moved=moved)

        for one in skies.each(wanted):
            nature, seed = one["nature"], one["seed"]
            others = [model for model in NATURES if model != nature]
            known = read([made(model, given.response, RESPONSE_SEED) for model in others], True)
            pool = read([made(nature, given.showers, NATURE_SEED + seed)], False)
            spectra, kept = analysed(pool, known, 0.0, seed, knees=False)
            skies.keep({**one, **kept, "found": entry_of(spectra)})
    if skies.done:
        print(table(skies.done))
        if given.store:
            store("hadronic_spectra", "Spectra of a nature of another hadronic model", table(skies.done))


if __name__ == "__main__":
    main()
