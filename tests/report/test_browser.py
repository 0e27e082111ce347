"""The report in a real browser: no errors, no missing pictures, no sideways scrolling on a phone, dark and light."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import shutil
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

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
LOOK = """JSON.stringify({
  scroll: document.documentElement.scrollWidth, width: window.innerWidth,
  pictures: [...document.querySelectorAll('figure svg')].map(s => s.getBoundingClientRect().height),
  outside: [...document.querySelectorAll('figure svg')].filter(s => s.getBoundingClientRect().right > innerWidth + 1)
    .length,
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
    while not loaded:
        note(await receive())
    found = json.loads((await send("Runtime.evaluate", expression=LOOK))["result"]["value"])
    if screenshot:
        drawn = await send("Page.captureScreenshot", captureBeyondViewport=True)
        screenshot.write_bytes(base64.b64decode(drawn["data"]))
    socket.close()
    while await socket.read_message() is not None:
        pass  # until the browser has hung up too
    return found | {"complaints": complaints}


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


@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed: the report cannot be opened")
def test_report_in_a_browser(composition_report: Path, gamma_report: Path, tmp_path: Path) -> None:
    pytest.importorskip("tornado", reason="tornado (extra: cluster) speaks to the browser")
    process, port = start_browser(tmp_path / "profile")
    try:
        for page in (composition_report, gamma_report):
            for width, dark in ((1200, False), (390, False), (390, True)):
                found = asyncio.run(look(port, page, width=width, dark=dark))
                assert found["complaints"] == []
                assert found["missing"] == 0
                assert found["scroll"] <= found["width"] == width, found
                assert found["outside"] == 0
                assert len(found["pictures"]) >= 5
                assert min(found["pictures"]) > 50
                assert found["smallest"] >= 8, "letters must stay legible"
                light = [sum(map(int, found[key].strip("rgb()").split(","))) for key in ("page", "ink")]
                assert (light[0] < light[1]) == dark
    finally:
        process.terminate()
        process.wait(PATIENCE_S)
