"""Commands that make a run usable elsewhere: export."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from commands.app import app
from commands.options import listed
from commands.output import Answer, JsonOption, QuietOption


@app.command()
def export(
    run: Annotated[Path, typer.Option(help="Your own finished run: its models are opened in this process.")],
    out: Annotated[Path, typer.Option(help="New folder for the ONNX files and export.json.")],
    learners: Annotated[str | None, typer.Option(help="Comma-separated names; default: what ships.")] = None,
    check: Annotated[Path | None, typer.Option(help="Dataset folder: 10,000 events through runs and files.")] = None,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Write the fits of a run as ONNX files: feature columns (and grids) in, log-probabilities out.

    export.json beside them names columns with units, and says how fits are averaged, combined and decided. What has no
    ONNX form is named with the reason.

    Example: [bold]python cli.py export --run runs/gamma --out gamma-onnx --check data/gamma_test[/bold]
    """
    from stacking.portable.export import EXPORT_FILE, export_run

    output = Answer(quiet, as_json)
    found = export_run(run, out, listed(learners), check, bars=output.bars)
    for name, reason in found.refused.items():
        output.remark(f"not exported: {name}: {reason}")
    lines = [f"{name}: {n} files" for name, n in found.written.items()]
    if found.largest_difference is not None:
        lines.append(f"largest difference of a probability from the run: {found.largest_difference:.1e}")
    lines.append(f"wrote {out / EXPORT_FILE}")
    content = {
        "out": out,
        "files": found.written,
        "refused": found.refused,
        "largest_difference_in_probability": found.largest_difference,
    }
    output.show(lambda: "\n".join(lines), lambda: content)
