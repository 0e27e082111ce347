"""The report: one self-contained file with everything in it, that speaks of what ships and works in a real browser.

Plain words, differences and captions have the name of what ships, and its labels by its rule. Feature importance is
tested on a learner that is known to use one group only. The browser meets no errors, no missing pictures, no sideways
scrolling on a phone, dark and light.
"""

from __future__ import annotations

import asyncio
import base64
import io
import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.request
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from markupsafe import Markup

from showerstack.features.build import build_table
from showerstack.models.base.learner import Batch
from showerstack.models.registry import create, spec
from showerstack.report.events_page import write_events
from showerstack.report.outcome import learner_table
from showerstack.report.public.submission import write_submission, yaml_text
from showerstack.report.run_page import (
    _on_the_same_events,
    headline,
    learners,
    limits,
    plain_words,
    verdict,
    write_report,
)
from showerstack.report.run_sections import column_gains, group_gains, group_of, shuffle, shuffled_losses
from showerstack.report.shared import markup
from showerstack.report.shared.subject import EvaluatedRun
from showerstack.report.shared.text import difference_text
from showerstack.report.task_sections import mass_posteriors, survival, survival_boxes
from showerstack.runtime.checksums import CHECKSUMS_FILE
from showerstack.runtime.context import Context, PlainConsole
from showerstack.runtime.errors import InputError
from showerstack.runtime.files import read_json, write_json, write_npz
from showerstack.scoring.metrics.intervals import Interval
from showerstack.scoring.metrics.paired import Paired
from showerstack.showers.array import KASCADE
from showerstack.showers.dataset import Dataset
from showerstack.showers.schema import COMPOSITION, SCALAR_NAMES
from showerstack.stacking.folder import RunFolder
from tests.manifests import manifest
from tests.report.conftest import LEARNER

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.parametrize("task", ["composition", "gamma"])
def test_report_is_one_self_contained_file(task: str, request: pytest.FixtureRequest) -> None:
    file = request.getfixturevalue(f"{task}_report")
    assert file == request.getfixturevalue(f"{task}_world")[0] / "report.html"
    text = file.read_text(encoding="utf-8")
    assert not re.findall(r'(?:src|href)="(?!#|data:)([^"]+)"', text)
    words = re.sub(r"<[^>]+>", " ", re.sub(r"<(svg|style).*?</\1>", "", text, flags=re.DOTALL))
    assert not {"nan", "none", "inf"} & set(words.lower().split())
    identifiers = re.findall(r'\bid="([^"]+)"', text)
    assert len(identifiers) == len(set(identifiers))
    for reference in re.findall(r'(?:href="|url\()#([^")]+)', text):
        assert reference in identifiers, reference
    assert "#102a31" not in text, "ink must take the page's colour"


def test_a_folder_that_cannot_be_written_is_told_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.access", lambda *place: False)  # permissions do not bind the superuser
    with pytest.raises(InputError, match=f"{tmp_path} cannot be written: choose another place"):
        write_report(tmp_path, tmp_path / "nothing is read")


def test_composition_report_has_its_sections(composition_report: Path) -> None:
    text = composition_report.read_text(encoding="utf-8")
    for key in (
        "summary",
        "learners",
        "confusion",
        "fractions",
        "reliability",
        "gallery",
        "cost",
        "provenance",
    ):
        assert f'<section id="{key}">' in text
    assert "The showers are simulated" in text
    assert "lenet failed and was left out: out of memory" in text
    assert text.count("<figure>") >= 15


AT_A_LEVEL = """
import sys
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path

run, data, level = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
text = Path("scoring/metrics/level.py").read_text()
assert text.count("LEVEL = 0.95") == 1
name = "showerstack.scoring.metrics.level"
module = sys.modules[name] = module_from_spec(spec_from_loader(name, None))
exec(text.replace("LEVEL = 0.95", f"LEVEL = {level}"), vars(module))

from rich.console import Console
from showerstack.report.events_page import write_events
from showerstack.report.outcome import learner_table
from showerstack.report.run_page import learners
from showerstack.report.shared.subject import EvaluatedRun

Console(width=200).print(learner_table(run, data))
print(learners(EvaluatedRun.read(run, data)).body)
"""


@pytest.mark.slow
def test_intervals_follow_one_constant_and_errors_do_not(composition_world: tuple[Path, Path]) -> None:
    errors, spans = {}, {}
    command = [sys.executable, "-c", AT_A_LEVEL, *map(str, composition_world), "0.5"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    screen = io.StringIO()
    PlainConsole(width=200, file=screen).print(learner_table(*composition_world))
    here = screen.getvalue() + "\n" + learners(EvaluatedRun.read(*composition_world)).body
    for percent, shown in ((95, here), (50, done.stdout)):
        table, _, html = shown.partition("<")
        assert "±: one standard error" in table
        assert set(re.findall(r"(\d+) %\s+interval", html)) == {str(percent)}
        rows = (re.search(r"mlp +\S+ ± (\S+)", table), re.search(r"mlp</td><td>\S+ ± ([\d.]+)", html))
        errors[percent] = [float(row[1]) for row in rows if row]
        low, high = re.findall(r"random_forest</td>.*?\[([-+.\d]+), ([-+.\d]+)\]", html)[0]
        spans[percent] = float(high) - float(low)
    np.testing.assert_allclose(errors[50], errors[95], rtol=0.03)
    assert len(errors[50]) == 2
    # A normal law's quartile is at 0.674 standard errors, its central 95 % end at 1.960.
    assert spans[50] == pytest.approx(spans[95] * 0.674 / 1.960, rel=0.03)


def test_gamma_report_has_its_sections(gamma_report: Path) -> None:
    text = gamma_report.read_text(encoding="utf-8")
    for key in ("summary", "learners", "survival", "reliability", "gallery"):
        assert f'<section id="{key}">' in text
    assert "drawn for orientation only" in text
    for words in (
        "Q-factor at 75 % gamma efficiency",
        "gamma efficiency at hadron survival 0.001",
        "area under the ROC",
    ):
        assert words in text
    assert "accuracy" not in re.sub(
        r"<svg.*?</svg>", "", text[text.index("<h1>") : text.index("<nav>")], flags=re.DOTALL
    )
    assert "hadrons left, one threshold" in text


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize(("spread", "quoted"), [(0.0, True), (2.5, False)])
def test_report_of_weighted_hadrons_quotes_what_weights_determine(
    gamma_world: tuple[Path, Path], tmp_path: Path, spread: float, quoted: bool
) -> None:
    run, data = shutil.copytree(gamma_world[0], tmp_path / "run"), gamma_world[1]
    shutil.copytree(data / "gamma_test", tmp_path / "gamma_test")
    (tmp_path / "gamma_test" / CHECKSUMS_FILE).unlink(missing_ok=True)
    labels = np.load(tmp_path / "gamma_test" / "labels_gamma.npy")
    drawn = np.exp(spread * np.random.default_rng(1).standard_normal(len(labels)))
    np.save(tmp_path / "gamma_test" / "weight.npy", np.where(labels == 1, drawn, 1.0).astype(np.float32))
    evaluated = EvaluatedRun.read(run, tmp_path)
    row = evaluated.metrics["survival_rates"]["75%"]
    assert row["quoted"] == quoted
    _, value, remark = survival_boxes(evaluated)[0]
    assert value.startswith("<") != quoted
    assert f"worth {row['n_effective']:,.0f} by their weights" in remark
    assert evaluated.systems[-1].interval.is_limit != quoted
    assert learner_table(run, tmp_path).row_count >= len(evaluated.systems)
    if not quoted:
        top = str(headline(evaluated))
        assert "95 % upper limit; " in top + survival(evaluated).body
        assert value in top.replace("&lt;", "<")


def test_the_headline_says_what_its_number_means(composition_report: Path) -> None:
    text = composition_report.read_text(encoding="utf-8")
    top = text[text.index("<h1>") : text.index("<nav>")]
    for words in ("composition: mass composition", "0 perfect, 0.158 random", "The best published is 0.105"):
        assert words in top
    assert "mean difference between the true and the predicted fraction" in " ".join(top.split())


def test_tables_scroll_with_a_hint_on_a_phone(composition_report: Path) -> None:
    style = composition_report.read_text(encoding="utf-8").split("<style>")[1].split("</style>")[0]
    assert 'content: "tables scroll sideways \\2192"' in style
    assert "overflow-x: auto" in style


NAME = "$_$<img src=x onerror=alert(1)>|`[a](b)`"
"""Broken mathematics, a picture that calls a script, a table's border and a link: yet a name of a file."""
HOSTILE = NAME + "\x1b[2J\n# x"


def _renamed(run: Path, target: Path) -> Path:
    """Copy a run and call its forest something hostile (file names cannot hold a slash)."""
    shutil.copytree(run, target)
    text = (target / "manifest.json").read_text(encoding="utf-8")
    manifest = json.loads(text)
    manifest["learners"][0]["name"] = NAME
    manifest["learners"][-1] |= {"error": HOSTILE}
    manifest["gate"]["reason"] = HOSTILE
    (target / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    (target / "test" / "random_forest.npz").rename(target / "test" / f"{NAME}.npz")
    RunFolder(target).write_checksums()
    return target


@pytest.mark.slow
def test_hostile_names_in_report_and_submission(composition_world: tuple[Path, Path], tmp_path: Path) -> None:
    run = _renamed(composition_world[0], tmp_path / "run")
    data = composition_world[1]
    text = write_report(run, data).read_text(encoding="utf-8")
    assert "<img" not in text
    assert "$_$&lt;img" in text, "the picture shows the name as it is"
    assert "\x1b" not in re.sub(r"<(p|td|li)\b.*?</\1>", "", text, flags=re.DOTALL)
    folder = write_submission([run], "mine", data=data, out=tmp_path)
    readme = (folder / "README.md").read_text(encoding="utf-8")
    assert not re.search(r"(?<!\\)<img|^# x|\x1b", readme, flags=re.MULTILINE)
    metadata = (folder / "metadata.yaml").read_text(encoding="utf-8")
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", metadata)


def test_no_text_becomes_markup(tmp_path: Path) -> None:
    """Templates escape whatever is not a part of a page, so that a section that forgets shows tags as they are."""
    words = "<img src=x> & \"'"
    parts = [markup.paragraph(words, words), markup.heading(words), markup.bullets([words])]
    parts += [markup.table((words,), [(words,)], ours=[0], kind=words), markup.numbers([(words, words, words)])]
    parts += [markup.picture(Markup("<svg></svg>"), words), markup.side_by_side(Markup(), words)]  # type: ignore[arg-type]
    section = markup.Section(words, words, markup.joined(parts))
    text = markup.write_page(tmp_path / "page.html", words, words, [section]).read_text()  # type: ignore[arg-type]
    assert "<img" not in text
    assert text.count("&lt;img src=x&gt; &amp; &#34;&#39;") == 19
    assert text.count("<svg") == 1


def test_yaml_holds_what_yaml_forbids_as_escapes() -> None:
    text = yaml_text({"name": "a\x9b\x7f\u2028\ufeffb"})
    assert text == '{\n  "name": "a\\u009b\\u007f\\u2028\\ufeffb"\n}\n'


def test_report_loads_and_runs_nothing(composition_report: Path) -> None:
    text = composition_report.read_text(encoding="utf-8")
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]+)"', text)
    assert policy
    assert policy[1].startswith("default-src 'none'")
    assert "script" not in policy[1]
    assert text.index("Content-Security-Policy") < text.index("<title>")


COLUMNS = ("fit_lg_nmu", "fit_lg_ne", "prof_e_r50_m")


@pytest.fixture(scope="module")
def world(tiny_composition: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A run whose only learner was trained on labels that depend on the muon fit alone."""
    table = build_table(tiny_composition / "composition_test", ctx=Context(workers=1))
    matrix = table.matrix(COLUMNS)
    cuts = np.nanquantile(matrix[:, 0], [0.2, 0.4, 0.6, 0.8])
    labels = np.digitize(np.nan_to_num(matrix[:, 0], nan=-9.0), cuts).astype(np.int64)
    batch = Batch(np.arange(len(labels)), table=matrix, columns=COLUMNS, labels=labels)
    learner = create(spec("lightgbm"), COMPOSITION.classes, preset="quick")
    learner.fit(batch.take(np.arange(0, 800)), batch.take(np.arange(800, 1000)), seed=1)
    run = tmp_path_factory.mktemp("run")
    learner.save(run / "learners" / "lightgbm" / "fold-0")
    write_json(run / "learners" / "lightgbm" / "fold-0" / "task.json", {"importances": learner.importances()})
    log_proba = learner.predict_log_proba(batch)
    guessed = log_proba.argmax(axis=1).astype(np.int8)
    for name in ("lightgbm", "average", "stack"):
        write_npz(run / "test" / f"{name}.npz", log_proba=log_proba, predictions=guessed)
    row = LEARNER | {"name": "lightgbm", "features": list(COLUMNS), "log_loss": 0.1}
    # a data folder whose labels are the ones that were learnt
    data = tmp_path_factory.mktemp("data")
    source = tiny_composition / "composition_test"
    (data / "composition_test").mkdir()
    for file in source.iterdir():
        (data / "composition_test" / file.name).symlink_to(file)
    (data / "composition_test" / "labels_composition.npy").unlink()
    np.save(data / "composition_test" / "labels_composition.npy", labels.astype(np.int8))
    (data / "composition_test" / "checksums.json").unlink()
    (data / "composition_test.features").symlink_to(source.with_name("composition_test.features"))
    opened = Dataset.open(data / "composition_test", COMPOSITION)
    assert len(opened) == 1000
    origin = {"config_hash": "c0ffee", "test_fingerprint": opened.fingerprint()}
    write_npz(run / "predictions.npz", predictions=guessed, **{name: np.array(value) for name, value in origin.items()})
    known = {"config_hash": origin["config_hash"], "data": {"test_fingerprint": origin["test_fingerprint"]}}
    write_json(run / "manifest.json", manifest("composition", learners=[row], **known))
    RunFolder(run).write_checksums()
    return run, data


def test_the_group_that_decides_is_found(world: tuple[Path, Path]) -> None:
    evaluated = EvaluatedRun.read(*world)
    gain = group_gains(column_gains(evaluated.run)["lightgbm"])
    assert sum(gain.values()) == pytest.approx(1.0)
    assert gain[group_of("fit_lg_nmu")] > 0.8
    name, losses = shuffled_losses(evaluated) or ("", {})
    assert name == "lightgbm"
    assert set(losses) == {group_of(column) for column in COLUMNS}
    muon = losses[group_of("fit_lg_nmu")]
    assert muon.interval.low > 0.5, "shuffling what decides costs dearly"
    assert all(muon.difference > 5 * other.difference for other in losses.values() if other is not muon)


def test_shuffling_touches_one_group_only() -> None:
    table = np.asfortranarray(np.arange(12, dtype=np.float32).reshape(4, 3))
    batch = Batch(np.arange(4), table=table, columns=COLUMNS)
    shuffled = shuffle(batch, group_of("fit_lg_ne"), np.array([3, 2, 1, 0])).table
    assert shuffled is not None
    assert shuffled[:, 1].tolist() == table[::-1, 1].tolist()
    assert (shuffled[:, [0, 2]] == table[:, [0, 2]]).all()
    assert (batch.table == np.arange(12).reshape(4, 3)).all()


def _edited(world: tuple[Path, Path], to: Path, *, shipped: bool = True) -> Path:
    run = Path(shutil.copytree(world[0], to))
    manifest = read_json(run / "manifest.json")
    manifest["gate"]["shipped"] = shipped
    write_json(run / "manifest.json", manifest)
    RunFolder(run).write_checksums()
    return run


@pytest.mark.usefixtures("undrawn")
def test_captions_name_the_learner_that_predicts(composition_world: tuple[Path, Path], tmp_path: Path) -> None:
    data = composition_world[1]
    evaluated = EvaluatedRun.read(_edited(composition_world, tmp_path / "run", shipped=False), data)
    assert evaluated.shipped.name == "mlp"
    assert "Used for new showers: mlp." in plain_words(evaluated).body
    body = mass_posteriors(evaluated).body
    assert "Posteriors of mlp on the test set" in body
    assert "mean posterior of mlp" in body
    scalars = np.array(evaluated.dataset.scalars)
    scalars[:, SCALAR_NAMES.index("Nmu")] = 0.0
    vars(evaluated)["dataset"] = replace(evaluated.dataset, scalars=scalars)
    assert "mean posterior" not in mass_posteriors(evaluated).body, "an array without muon detectors has no plane"
    assert "Differences are to mlp, which predicts new showers" in learners(evaluated).body
    assert "stack" in evaluated.against_shipped
    assert "mlp" not in evaluated.against_shipped
    assert "held-out showers: mlp" in str(learner_table(evaluated.run.folder, data).caption)


@pytest.mark.parametrize(("logarithmic", "shown"), [(False, "worse (+0.0003)"), (True, "worse (+3.4e-4)")])
def test_small_differences_of_survivals_keep_their_digits(logarithmic: bool, shown: str) -> None:
    difference = Paired(0.00034, Interval(1e-4, 5e-4), 0.01, 1e-4)
    evaluated = SimpleNamespace(
        metric=SimpleNamespace(name="survival", logarithmic=logarithmic), shipped_words="the stack",
        against_shipped={"mlp": (difference, difference)},
    )  # fmt: skip
    assert f"mlp: {shown}" in _on_the_same_events(evaluated)  # type: ignore[arg-type]


def test_what_is_level_is_called_level_and_no_zero_has_a_sign() -> None:
    nothing = Paired(-1e-9, Interval(-3e-9, 2e-9), 0.5, 1e-9)
    small = Paired(-0.00012, Interval(-0.0003, 0.00001), 0.07, 1e-4)
    rare = Paired(0.0, Interval(-2.57e-4, 2.57e-4), 1.0, 1e-4)
    assert verdict(nothing, "mlp", "the stack", "") == "mlp and the stack are level: less than 0.0001 apart."
    assert "the data show no difference: 0.0001 [-0.0003, 0.0000], p =" in verdict(small, "mlp", "the stack", "")
    assert "no difference: 0 [-2.6e-4, +2.6e-4] of it, p = 1." in verdict(rare, "a", "b", "of it", logarithmic=True)
    assert difference_text(nothing) == "0"
    assert difference_text(small) == "-0.0001 [-0.0003, +0.0000]"


CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = [
    "--headless",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--remote-debugging-port=0",
]
PATIENCE_S = 60
ARRIVED = "location.protocol == 'file:' && document.readyState == 'complete'"
LOOK = """JSON.stringify({
  scroll: document.documentElement.scrollWidth, width: window.innerWidth,
  pictures: [...document.querySelectorAll('figure svg')].map(s => s.getBoundingClientRect().height),
  outside: [...document.querySelectorAll('figure svg')].filter(s => s.getBoundingClientRect().right > innerWidth + 1)
    .length,
  cut: [...document.querySelectorAll('.table')].filter(t => t.scrollWidth > t.clientWidth + 1).length,
  missing: [...document.images].filter(i => !i.complete || !i.naturalWidth).length,
  page: getComputedStyle(document.body).backgroundColor,
  ink: getComputedStyle(document.querySelector('figure svg')).color,
  smallest: Math.min(...[...document.querySelectorAll('figure svg text')].map(t => t.getBoundingClientRect().height))
})"""


async def look(port: str, page: Path, *, width: int, dark: bool, screenshot: Path | None = None) -> dict[str, Any]:
    """Open a page in a fresh tab through the browser's debugging protocol and measure it."""
    from tornado.websocket import websocket_connect

    request = urllib.request.Request(f"http://127.0.0.1:{port}/json/new", method="PUT")
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
        tab = json.load(answer)["webSocketDebuggerUrl"]
    socket = await websocket_connect(tab, max_message_size=1 << 28)
    complaints: list[str] = []
    loaded = False

    def note(message: dict[str, Any]) -> None:
        nonlocal loaded
        method, content = message.get("method"), message.get("params", {})
        loaded = loaded or method == "Page.loadEventFired"
        if method == "Runtime.exceptionThrown" or (method == "Log.entryAdded" and content["entry"]["level"] == "error"):
            complaints.append(json.dumps(content))
        if method == "Runtime.consoleAPICalled" and content["type"] == "error":
            complaints.append(json.dumps(content))

    async def receive() -> dict[str, Any]:
        text = await asyncio.wait_for(socket.read_message(), PATIENCE_S)
        assert text is not None, "the browser hung up"
        return json.loads(text)

    number = 0

    async def send(method: str, **content: Any) -> dict[str, Any]:
        nonlocal number
        number += 1
        await socket.write_message(json.dumps({"id": number, "method": method, "params": content}))
        while (message := await receive()).get("id") != number:
            note(message)
        assert "error" not in message, message
        return message["result"]

    for domain in ("Page", "Runtime", "Log"):
        await send(f"{domain}.enable")
    await send("Emulation.setDeviceMetricsOverride", width=width, height=844, deviceScaleFactor=1, mobile=width < 600)
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    await send("Emulation.setEmulatedMedia", features=[scheme])
    await send("Page.navigate", url=page.resolve().as_uri())
    arrived = False
    while not arrived:  # the empty page of a new tab may say that it is loaded, too
        while not loaded:
            note(await receive())
        loaded = False
        arrived = (await send("Runtime.evaluate", expression=ARRIVED))["result"]["value"]
    result = json.loads((await send("Runtime.evaluate", expression=LOOK))["result"]["value"])
    if screenshot:
        drawn = await send("Page.captureScreenshot", captureBeyondViewport=True)
        screenshot.write_bytes(base64.b64decode(drawn["data"]))
    socket.close()
    while await socket.read_message() is not None:
        pass  # until the browser has hung up too
    return result | {"complaints": complaints}


def start_browser(profile: Path) -> tuple[subprocess.Popen[bytes], str]:
    """Start Chromium; return the process and its debugging port."""
    assert CHROMIUM is not None
    # containers run tests as root, where the browser's own sandbox cannot start
    root = ["--no-sandbox"] if sys.platform == "linux" and os.geteuid() == 0 else []
    process = subprocess.Popen(
        [CHROMIUM, *FLAGS, *root, f"--user-data-dir={profile}", "about:blank"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    said = profile / "DevToolsActivePort"
    until = time.monotonic() + PATIENCE_S
    while not (said.exists() and said.read_text().strip()):
        if process.poll() is not None or time.monotonic() > until:
            process.kill()
            process.wait()
            raise RuntimeError("the browser did not start")
        time.sleep(0.05)
    return process, said.read_text().splitlines()[0]


@pytest.mark.skipif(
    CHROMIUM is None and "BROWSER_REQUIRED" not in os.environ,
    reason="the report is not opened: no Chromium (apt-get install chromium)",
)
@pytest.mark.slow
def test_report_in_a_browser(composition_report: Path, gamma_report: Path, tmp_path: Path) -> None:
    pytest.importorskip("tornado", reason="tornado (extra: cluster) speaks to the browser")
    process, port = start_browser(tmp_path / "profile")
    try:
        for page in (composition_report, gamma_report):
            for width, dark in ((1200, False), (390, False), (390, True)):
                done = asyncio.run(look(port, page, width=width, dark=dark))
                assert done["complaints"] == []
                assert done["missing"] == 0
                assert done["scroll"] <= done["width"] == width, done
                assert done["outside"] == 0
                assert done["cut"] == 0 or width < 1200, "on a wide screen tables have room"
                assert len(done["pictures"]) >= 5
                assert min(done["pictures"]) > 50
                assert done["smallest"] > 7.9, "letters must stay legible"
                light = [sum(map(int, done[key].strip("rgb()").split(","))) for key in ("page", "ink")]
                assert (light[0] < light[1]) == dark
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


@pytest.mark.parametrize("simulated", [True, False])
def test_reports_of_another_array_do_not_speak_of_kascade(
    composition_world: tuple[Path, Path], simulated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = EvaluatedRun.read(*composition_world)
    ours_data = ours.dataset
    source = dict(ours.dataset.source) if simulated else {}
    smaller = replace(KASCADE.without((0, 1), ()), name="square")
    theirs = EvaluatedRun.read(*composition_world)
    here = replace(ours.dataset, source=source, array=smaller)
    monkeypatch.setattr(type(theirs), "dataset", property(lambda run: here if run is theirs else ours_data))
    words = " ".join((*limits(theirs), headline(theirs)))
    assert not re.search("KASCADE|published|pre-split", words)
    assert ("square" in words) == (simulated and ours.simulated)
    assert re.search("KASCADE|pre-split", " ".join(limits(ours)))
    assert "The best published" in headline(ours)


def test_a_page_of_the_highest_scores_is_turned_without_scripts(gamma_world: tuple[Path, Path], tmp_path: Path) -> None:
    run, data = gamma_world
    file = write_events(run, tmp_path / "events.html", top=5, data=data)
    text = file.read_text(encoding="utf-8")
    scores = np.load(run / "predictions.npz")["gamma_scores"]
    highest = np.argsort(-scores, kind="stable")[:5].tolist()
    assert re.findall(r"<h2>(\d+): event (\d+), score", text) == [(str(k + 1), str(e)) for k, e in enumerate(highest)]
    assert text.count('<input type="radio"') == text.count("<section id=") == text.count("<figure>") == 5
    for k in range(1, 6):
        assert f"#pick{k}:checked ~ #event{k}" in text
    assert text.count(">next</label>") == text.count(">previous</label>") == 4
    assert "<script" not in text
    assert not re.search(r"""(src|href)=["']https?:""", text)


@pytest.mark.filterwarnings("ignore::showerstack.runtime.errors.Remark")
def test_a_page_of_scores_says_what_moved_them(tiny_composition: Path, composition_run: Path, tmp_path: Path) -> None:
    build_table(tiny_composition / "composition_test", ctx=Context(workers=1))
    text = write_events(composition_run, tmp_path / "events.html", top=3, data=tiny_composition).read_text("utf-8")
    assert text.count("What moved ln p(") == 3


@pytest.mark.skipif(CHROMIUM is None and "BROWSER_REQUIRED" not in os.environ, reason="no Chromium")
@pytest.mark.slow
def test_a_page_of_scores_in_a_browser(gamma_world: tuple[Path, Path], tmp_path: Path) -> None:
    pytest.importorskip("tornado", reason="tornado (extra: cluster) speaks to the browser")
    run, data = gamma_world
    page = write_events(run, tmp_path / "events.html", top=3, data=data)
    process, port = start_browser(tmp_path / "profile")
    try:
        for width, dark in ((1200, False), (390, False), (390, True)):
            done = asyncio.run(look(port, page, width=width, dark=dark))
            assert (done["complaints"], done["missing"], done["outside"]) == ([], 0, 0)
            assert done["scroll"] <= done["width"] == width, done
            shown = [size > 0 for size in done["pictures"]]
            assert shown == [True, False, False], "one event at a time"
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


def test_a_page_of_scores_wants_the_set_that_was_predicted(
    gamma_world: tuple[Path, Path], tiny_gamma: Path, tmp_path: Path
) -> None:
    run, data = gamma_world
    (tmp_path / "gamma_test").symlink_to(tiny_gamma / "gamma_test")
    with pytest.raises(InputError, match="was made for other events"):
        write_events(run, tmp_path / "events.html", top=5, data=tmp_path)
    with pytest.raises(InputError, match="ends in"):
        write_events(run, tmp_path / "events.png", top=5, data=data)
    assert not list(tmp_path.glob("events*"))
