r"""Do programs that run ONNX files give what a learner says? Every exported learner in each runtime that is installed.

    python -m benchmarks.quality.onnx_runtimes EXPORT DATASET --node-modules FOLDER --browser chromium --store

EXPORT is what ``export`` made of a run, DATASET a folder of showers. For each learner's first file: 1,000 events as
they are, the same with every seventh value missing, with empty grids and all values missing, and one by one. The
reference is onnxruntime, which ``export`` compares with the run itself. FOLDER holds ``node_modules`` with
onnxruntime-web, which then runs in Node, and with ``--browser`` in a page.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import queue
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.shared.results import HELP, store
from showerstack.features.build import build_table
from showerstack.models.onnx.graph import COLUMNS, GRID, LOG_PROBABILITY
from showerstack.models.onnx.predictor import session
from showerstack.models.onnx.runtimes import Feed, Runner, largest_difference_in, runtimes
from showerstack.runtime.files import read_json
from showerstack.showers.dataset import Dataset

N = 1_000
WEB = """
const ort = require('onnxruntime-web');
const fs = require('fs');
ort.env.wasm.numThreads = 1;
(async () => {
  const asked = JSON.parse(fs.readFileSync('asked.json'));
  const opened = await ort.InferenceSession.create(fs.readFileSync('model.onnx'), {executionProviders: ['wasm']});
  const found = [];
  for (const feed of asked.feeds) {
    const inputs = {};
    for (const [name, {file, shape}] of Object.entries(feed)) {
      const bytes = fs.readFileSync(file);
      inputs[name] = new ort.Tensor('float32', new Float32Array(bytes.buffer.slice(bytes.byteOffset,
        bytes.byteOffset + bytes.length)), shape);
    }
    found.push(Array.from((await opened.run(inputs))[asked.output].data, String));
  }
  fs.writeFileSync('out', JSON.stringify(found));
})().catch(error => { console.error(String(error)); process.exit(1); });
"""


PAGE = """<!doctype html><script src="/dist/ort.wasm.min.js"></script><script>
ort.env.wasm.numThreads = 1;
ort.env.wasm.wasmPaths = '/dist/';
const bytes = async name => (await fetch(name)).arrayBuffer();
(async () => {
  const asked = await (await fetch('asked.json')).json();
  const opened = await ort.InferenceSession.create(await bytes('model.onnx'), {executionProviders: ['wasm']});
  const found = [];
  for (const feed of asked.feeds) {
    const inputs = {};
    for (const [name, {file, shape}] of Object.entries(feed))
      inputs[name] = new ort.Tensor('float32', new Float32Array(await bytes(file)), shape);
    found.push(Array.from((await opened.run(inputs))[asked.output].data, String));
  }
  return found;
})().catch(error => String(error)).then(found => fetch('out', {method: 'POST', body: JSON.stringify(found)}));
</script>"""


def by_web(model: Path, feeds: list[Feed], modules: Path, browser: str | None = None) -> list[np.ndarray]:
    """Run by onnxruntime-web, WebAssembly in Node or in a page of a browser."""
    with tempfile.TemporaryDirectory() as folder:
        place, asked = Path(folder), []
        for k, feed in enumerate(feeds):
            asked.append({name: {"file": f"{k}-{name}", "shape": values.shape} for name, values in feed.items()})
            for name, values in feed.items():
                np.ascontiguousarray(values).tofile(place / f"{k}-{name}")
        (place / "asked.json").write_text(json.dumps({"feeds": asked, "output": LOG_PROBABILITY}))
        shutil.copy(model, place / "model.onnx")
        found = in_page(place, modules, browser) if browser else in_node(place, modules)
    if isinstance(found, str):
        raise RuntimeError(found)
    return [
        np.array(values, dtype=np.float32).reshape(len(feed[COLUMNS]), -1)
        for values, feed in zip(found, feeds, strict=True)
    ]


def in_node(place: Path, modules: Path) -> Any:
    """Return what Node writes, or what it says went wrong."""
    (place / "run.js").write_text(WEB)
    where = {"NODE_PATH": str((modules / "node_modules").resolve())}
    node = [shutil.which("node") or "node", "run.js"]
    ran = subprocess.run(node, env=where, cwd=place, capture_output=True, text=True, check=False)
    if ran.returncode:
        return (ran.stderr.strip().splitlines() or ["no word"])[-1]
    return json.loads((place / "out").read_text())


def in_page(place: Path, modules: Path, browser: str) -> Any:
    """Return what a page sends back, or what it says went wrong."""
    (place / "index.html").write_text(PAGE)
    (place / "dist").symlink_to((modules / "node_modules" / "onnxruntime-web" / "dist").resolve())
    back: queue.Queue[bytes] = queue.Queue()

    class Handler(SimpleHTTPRequestHandler):
        def do_POST(self) -> None:
            back.put(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(place)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={place / 'profile'}"]
    page = f"http://127.0.0.1:{server.server_port}/index.html"
    with subprocess.Popen([browser, *options, page], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as shown:
        try:
            return json.loads(back.get(timeout=120))
        finally:
            shown.terminate()
            server.shutdown()


def with_web(modules: Path | None, browser: str | None) -> Iterator[tuple[str, Runner]]:
    """Yield name with version, and how it is run, of each runtime that is there."""
    yield from runtimes()
    if modules is not None:
        version = read_json(modules / "node_modules" / "onnxruntime-web" / "package.json")["version"]
        yield f"onnxruntime-web {version} in Node", lambda model, feeds: by_web(model, feeds, modules)
        if browser:
            yield f"onnxruntime-web {version} in a page", lambda model, feeds: by_web(model, feeds, modules, browser)


def cases(columns: np.ndarray, grid: np.ndarray | None) -> dict[str, list[Feed]]:
    """Return what is fed, by name of the case: a list of calls."""
    gaps = columns.copy()
    gaps.ravel()[::7] = np.nan
    empty = np.full_like(columns[:3], np.nan)

    def feed(values: np.ndarray, rows: slice, cells: np.ndarray | None) -> Feed:
        return {COLUMNS: values} | ({} if cells is None else {GRID: cells[rows]})

    every = slice(0, N)
    none = None if grid is None else np.zeros_like(grid[:3])
    return {
        "events": [feed(columns, every, grid)],
        "missing values": [feed(gaps, every, grid)],
        "empty": [feed(empty, slice(0, 3), none)],
        "one by one": [feed(columns[k : k + 1], slice(k, k + 1), grid) for k in range(20)],
    }


def main() -> None:
    """Print the matrix."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("export", type=Path)
    parser.add_argument("dataset", type=Path)
    parser.add_argument("--node-modules", type=Path)
    parser.add_argument("--browser", help="a Chromium")
    parser.add_argument("--store", action="store_true", help=HELP)
    given = parser.parse_args()
    table, data = build_table(given.dataset), Dataset.open(given.dataset, labels=False)
    names = list(cases(np.zeros((N, 1)), None))
    lines = [f"| learner | runtime | {' | '.join(names)} |", "|" + "---|" * (len(names) + 2)]
    for row in read_json(given.export / "export.json")["learners"]:
        file = row["fits"][0]["files"][0]
        columns = np.column_stack([table.matrix([name])[:N, 0] for name in file["columns"]]).astype(np.float32)
        model = given.export / file["file"]
        has_grid = any(one.name == GRID for one in session(model).get_inputs())
        grid = np.asarray(data.matrices[:N], dtype=np.float32) if has_grid else None
        fed = cases(columns, grid)
        for name, run in with_web(given.node_modules, given.browser):
            found = (largest_difference_in(run, model, fed[one]) for one in names)
            cells = " | ".join(one if isinstance(one, str) else f"{one:.1e}" for one in found)
            lines.append(f"| {row['name']} | {name} | {cells} |")
            print(lines[-1], flush=True)
    version = importlib.metadata.version("onnxruntime")
    words = (
        f"Largest difference of a log-probability from onnxruntime's ({version}), {N:,} events; or what was raised.\n\n"
    )
    if given.store:
        store("onnx_runtimes", "ONNX files in other programs", words + "\n".join(lines), worlds=())


if __name__ == "__main__":
    main()
