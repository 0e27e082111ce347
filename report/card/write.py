"""The card and the crate of a run on disk: ``model_card.md``, ``model_card.json``, ``ro-crate-metadata.json``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from report.card.content import CARD_JSON, CARD_TEXT, card_content
from report.card.crate import CRATE_FILE, run_crate
from showers.storage.files import atomic_path, write_json


def write_card(run: Path) -> Path:
    """Write the model card of a finished run and its RO-Crate metadata into the run folder; return the card.

    Equal runs with equal scores give equal bytes but for time, cost and machine, which are in it.

    Raises
    ------
    InputError
        If it is no finished run.
    """
    content = card_content(run)
    write_json(run / CARD_JSON, content)
    with atomic_path(run / CARD_TEXT) as temporary:
        temporary.write_text("\n".join(card_lines(content)) + "\n", encoding="utf-8")
    write_json(run / CRATE_FILE, run_crate(run, content))
    return run / CARD_TEXT


def card_lines(content: Mapping[str, Any]) -> Iterator[str]:
    """Yield the card as Markdown."""
    yield from (f"# Model card: {_plain(content['name'])}", "", content["use"], "")
    yield f"Classes: {', '.join(map(_plain, content['classes']))}."
    parts = (
        ("Model", _model_lines(content["model"])),
        ("Data and protocol", _data_lines(content["data"], content["protocol"])),
        ("Metrics", _metric_lines(content["metrics"])),
        ("Limits", (f"* {line}" for line in (*content["limits"], *map(_remark, content["remarks"])))),
        ("Licence", _licence_lines(content["licence"])),
        ("Cost", _cost_lines(content["cost"])),
        ("Made", _made_lines(content)),
    )
    for title, lines in parts:
        yield from ("", f"## {title}", "")
        yield from lines


def _remark(line: str) -> str:
    return f"Remark of the run: {_plain(line)}"


def _model_lines(model: Mapping[str, Any]) -> Iterator[str]:
    yield f"Shipped: **{_plain(model['shipped'])}** ({_plain(model['why'])})."
    yield f"Meta-learner: {_plain(model['meta_learner'])}; decision: {_plain(model['decision'])}."
    yield from ("", "| learner | from | parameters a fit | weight in the stack | held-out log-loss |")
    yield "|---|---|---|---|---|"
    for row in model["learners"]:
        name = row["name"] if row["status"] == "ok" else f"{row['name']} (left out)"
        numbers = (_count(row["parameters_a_fit"]), _number(row["weight"]), _number(row["held_out_log_loss"]))
        yield f"| {' | '.join(map(_plain, (name, row['source'], *numbers)))} |"


def _data_lines(data: Mapping[str, Any], protocol: Mapping[str, Any]) -> Iterator[str]:
    yield from ("| set | events | origin | fingerprint |", "|---|---|---|---|")
    for split, row in data.items():
        origin = f"{row['origin'] or 'not known: the folder is gone'}{_source(row['source'])}"
        name, mark = _plain(row["name"]), str(row["fingerprint"])[:16]
        yield f"| {split}: {name} | {row['events']:,} | {_plain(origin)} | {mark} |"
    yield ""
    yield (
        f"Benchmark protocol: {_plain(protocol['benchmark'] or 'none stated')}. {protocol['folds']} folds, repeated "
        f"{protocol['repeats']} times; what ships was judged on: {_plain(protocol['judged_on'])}. Test labels were "
        f"{protocol['test_labels']}."
    )


def _licence_lines(licence: Mapping[str, str]) -> Iterator[str]:
    yield f"Software and models: {licence['software_and_models']}. Data: {licence['data']}."


def _cost_lines(cost: Mapping[str, Any]) -> Iterator[str]:
    hours = cost["cpu_s"] / 3600
    yield f"{hours:.3f} CPU hours, {cost['peak_mb']:,.0f} MB peak memory, {cost['energy_wh']:.2f} Wh."
    yield str(cost["how_energy_was_found"])


def _made_lines(content: Mapping[str, Any]) -> Iterator[str]:
    made = content["made"]
    yield (
        f"{_plain(made['started'])} on {_plain(made['machine'])}, device {_plain(made['device'])}, "
        f"seed {made['seed']}, source revision {_plain(made['git_revision'])}, "
        f"configuration {str(content['config_hash'])[:16]}."
    )
    yield f"Packages: {', '.join(f'{name} {version}' for name, version in content['versions'].items())}."


def _metric_lines(metrics: Mapping[str, Any]) -> Iterator[str]:
    yield from ("Ranges are 95 % intervals.", "")
    gain = metrics["held_out_gain_of_the_stack"]
    if gain.get("gain") is not None:
        yield (
            f"* Stack against the best learner on held-out training events: log-loss lower by {gain['gain']:.4f} ± "
            f"{gain['standard_error']:.4f} nats (standard error)."
        )
    for key in ("held_out", "test"):
        for name, value in metrics.get(key, {}).items():
            if name == "judged_on":
                yield f"* {value}:"
            elif isinstance(value, Mapping):
                span = f" [{value['low']:.4g}, {value['high']:.4g}]" if "low" in value else ""
                yield f"  * {name.replace('_', ' ')} {value['value']:.4g}{span}"
            else:
                yield f"  * {name} {_plain(value)}"
    if "test" not in metrics:
        yield "* Not scored on a labelled test set."


def _source(source: Mapping[str, Any]) -> str:
    known = [f"{key} {source[key]}" for key in ("model", "world", "seed", "protocol") if key in source]
    return f" ({', '.join(known)})" if known else ""


def _number(value: Any) -> str:
    return f"{value:.4f}" if isinstance(value, int | float) else "-"


def _count(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else "-"


def _plain(text: Any) -> str:
    """Return text on one line that closes no cell and opens no markup."""
    words = " ".join(str("-" if text is None else text).split())
    return words.translate({ord(c): f"\\{c}" for c in "|*_`[]<>#"})
