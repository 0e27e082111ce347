"""Downloads against a server on this machine that can break connections, change files and refuse."""

from __future__ import annotations

import gzip
import io
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from showerstack.runtime.errors import InputError
from showerstack.runtime.http import NPZ, ZIP_MAGIC, fetch
from showerstack.showers.archives.convert import convert
from showerstack.showers.archives.download import download, download_raw
from showerstack.showers.dataset import Dataset
from showerstack.showers.schema import COMPOSITION, ENERGY, GAMMA
from showerstack.showers.simulation.raw import simulate_raw
from tests.faults.rounds import rounds

OutputFormat = Callable[["Handler", bytes, str | None], None]


class Server(ThreadingHTTPServer):
    """Serves ``files``; ``break_after`` bytes it drops the connection, once per entry."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {}
        self.tag = '"one"'
        self.break_after: list[int] = []
        self.ranges: list[str | None] = []
        self.hostile: OutputFormat | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        content = self.server.files.get(self.path)
        asked = self.headers.get("Range")
        self.server.ranges.append(asked)
        if content is None:
            self.send_error(404)
            return
        if self.server.hostile:
            self.server.hostile(self, content, asked)
            return
        start = 0
        if asked and self.headers.get("If-Range") == self.server.tag:
            start = int(asked.removeprefix("bytes=").removesuffix("-"))
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(content) - start))
        self.send_header("ETag", self.server.tag)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.end_headers()
        body = content[start:]
        if self.server.break_after:
            body = body[: self.server.break_after.pop(0)]
        self.wfile.write(body)

    def log_message(self, *arguments: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def npy(values: np.ndarray) -> bytes:
    """Return an array as a file."""
    stream = io.BytesIO()
    np.save(stream, values)
    return stream.getvalue()


CONTENT = npy(np.arange(512_000, dtype=np.uint16))
CHECKED = ("matrices.npy", "features.npy", "labels_gamma.npy")
OTHER = npy(np.arange(512_000, dtype=np.uint16)[::-1])


def test_broken_connection_is_continued_not_restarted(server: Server, tmp_path: Path) -> None:
    server.files["/a.npy"] = CONTENT
    server.break_after = [1000, 300_000]
    fetch(f"{server.url}/a.npy", tmp_path / "a.npy", pause_s=0)
    assert (tmp_path / "a.npy").read_bytes() == CONTENT
    assert server.ranges == [None, "bytes=1000-", "bytes=301000-"]
    assert [p.name for p in tmp_path.iterdir()] == ["a.npy"]


def test_a_later_call_continues_what_an_earlier_one_left(server: Server, tmp_path: Path) -> None:
    server.files["/a.npy"] = CONTENT
    server.break_after = [5000, 0]
    with pytest.raises(InputError, match=r"kept to continue"):
        fetch(f"{server.url}/a.npy", tmp_path / "a.npy", attempts=1, pause_s=0)
    assert not (tmp_path / "a.npy").exists(), "an incomplete file never has the final name"
    fetch(f"{server.url}/a.npy", tmp_path / "a.npy", pause_s=0)
    assert server.ranges[-1] == "bytes=5000-"
    assert (tmp_path / "a.npy").read_bytes() == CONTENT


def test_a_changed_file_is_fetched_from_the_start(server: Server, tmp_path: Path) -> None:
    server.files["/a.npy"] = CONTENT
    server.break_after = [5000, 0]
    with pytest.raises(InputError):
        fetch(f"{server.url}/a.npy", tmp_path / "a.npy", attempts=1, pause_s=0)
    server.files["/a.npy"] = OTHER
    server.tag = '"two"'
    fetch(f"{server.url}/a.npy", tmp_path / "a.npy", pause_s=0)
    assert (tmp_path / "a.npy").read_bytes() == OTHER


def test_missing_file_is_refused_with_its_address(server: Server, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nothing\.npy: the server answers 404"):
        fetch(f"{server.url}/nothing.npy", tmp_path / "nothing.npy")


def test_unreachable_server_is_one_clear_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(InputError, match="gave up after 2 attempts"):
        fetch("http://127.0.0.1:1/a.npy", tmp_path / "a.npy", attempts=2, pause_s=0)
    assert caplog.text.count("trying again in 0 s") == 1, "nobody waits without knowing for what"


@pytest.mark.parametrize(
    "address",
    ["", "nonsense", "data/v2", "file:///etc", "ftp://host/v2", "http://", "http://[", "http://host:port/v2",
     "http://host/\u00fc", "http://host/a b", "http://host/\x1b[2J"],
)  # fmt: skip
def test_what_is_no_address_of_a_server_is_refused(address: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not the address of a folder on a server") as refused:
        download(GAMMA, tmp_path / "out", base_url=address)
    assert str(refused.value).isprintable()
    assert not (tmp_path / "out").exists()


def test_download_makes_valid_dataset_folders(server: Server, tmp_path: Path) -> None:
    arrays = {
        "matrices.npy": np.ones((3, 16, 16, 2), np.float16),
        "features.npy": np.ones((3, 5), np.float16),
        "labels_gamma.npy": np.array([0, 1, 1], np.int8),
    }
    for name, array in arrays.items():
        np.save(tmp_path / name, array)
        server.files[f"/gamma_test/{name}"] = (tmp_path / name).read_bytes()
    (folder,) = download(GAMMA, tmp_path / "data", splits=("test",), base_url=server.url)
    assert Dataset.open(folder).labels is not None
    requests = len(server.ranges)
    download(GAMMA, tmp_path / "data", splits=("test",), base_url=server.url)
    assert len(server.ranges) == requests, "complete files are not asked for again"


def _send(handler: Handler, status: int, body: bytes, **headers: str | None) -> None:
    handler.send_response(status)
    for name, value in ({"Content_Length": str(len(body)), "ETag": handler.server.tag} | headers).items():
        if value is not None:
            handler.send_header(name.replace("_", "-"), value)
    handler.end_headers()
    with suppress(ConnectionError):  # the other side may have heard enough
        handler.wfile.write(body)


def _range(start: int, n_bytes: int) -> str:
    return f"bytes {start}-{n_bytes - 1}/{n_bytes}"


def _asked(asked: str | None) -> int:
    return int(asked.removeprefix("bytes=").removesuffix("-")) if asked else 0


def _ignores_if_range(handler: Handler, content: bytes, asked: str | None) -> None:
    start = _asked(asked)
    _send(handler, 206 if start else 200, content[start:], Content_Range=_range(start, len(content)) if start else None)


def _wrong_offset(handler: Handler, content: bytes, asked: str | None) -> None:
    if asked:
        _send(handler, 206, content[100:], Content_Range=_range(100, len(content)))
    else:
        _send(handler, 200, content)


def _silent_offset(handler: Handler, content: bytes, asked: str | None) -> None:
    _send(handler, 206 if asked else 200, content[_asked(asked) :] if asked else content)


def _untagged_range(handler: Handler, content: bytes, asked: str | None) -> None:
    start = _asked(asked)
    headers = {"Content_Range": _range(start, len(content)), "ETag": None} if start else {}
    _send(handler, 206 if start else 200, content[start:], **headers)


def _other_length(handler: Handler, content: bytes, asked: str | None) -> None:
    start = _asked(asked)
    if start:
        _send(handler, 206, content[start:] + b"more", ETag='"one"', Content_Range=_range(start, len(content) + 4))
    else:
        _send(handler, 200, content)


def _not_satisfiable(handler: Handler, content: bytes, asked: str | None) -> None:
    _send(handler, 416 if asked else 200, b"" if asked else content)


def _ignores_range(handler: Handler, content: bytes, asked: str | None) -> None:
    _send(handler, 200, content)


def _weak_tag(handler: Handler, content: bytes, asked: str | None) -> None:
    _send(handler, 200, content, ETag='W/"one"')


def _no_length(handler: Handler, content: bytes, asked: str | None) -> None:
    _send(handler, 200, content, Content_Length=None)


def _breaks(handler: Handler, content: bytes, asked: str | None) -> None:
    start = _asked(asked)
    headers = {"Content_Range": _range(start, len(content))} if start else {}
    body = content[start : start + 100_000]
    _send(handler, 206 if start else 200, body, Content_Length=str(len(content) - start), **headers)
    handler.close_connection = True


def _trailing(handler: Handler, content: bytes, asked: str | None) -> None:
    _send(handler, 200, content + bytes(50_000), Content_Length=None)


RECOVERED = (
    _ignores_if_range, _wrong_offset, _silent_offset, _untagged_range, _other_length, _not_satisfiable, _ignores_range,
    _weak_tag, _no_length, _trailing,
)  # fmt: skip


@pytest.mark.parametrize("changed", [False, True], ids=["same file", "new file"])
@pytest.mark.parametrize("answer", RECOVERED, ids=lambda answer: answer.__name__)
def test_versions_are_never_spliced(server: Server, tmp_path: Path, answer: OutputFormat, changed: bool) -> None:
    server.files["/a.npy"] = CONTENT
    server.break_after = [5000, 0]
    with pytest.raises(InputError):
        fetch(f"{server.url}/a.npy", tmp_path / "a.npy", attempts=1, pause_s=0)
    if changed:
        server.files["/a.npy"] = OTHER
        server.tag = '"two"'
    server.hostile = answer
    fetch(f"{server.url}/a.npy", tmp_path / "a.npy", attempts=3, pause_s=0)
    assert (tmp_path / "a.npy").read_bytes() == (OTHER if changed else CONTENT)
    assert [p.name for p in tmp_path.iterdir()] == ["a.npy"]


def test_an_old_part_beside_a_new_tag_is_not_continued(server: Server, tmp_path: Path) -> None:
    server.files["/a.npy"] = CONTENT
    (tmp_path / "a.npy.part").write_bytes(OTHER[:5000])
    for tag in ('{"etag": "', '{"etag": 1}', "[]", ""):
        (tmp_path / "a.npy.part.json").write_text(tag)
        fetch(f"{server.url}/a.npy", tmp_path / "a.npy", pause_s=0)
        assert (tmp_path / "a.npy").read_bytes() == CONTENT
    assert server.ranges == [None] * 4


def _page(handler: Handler, content: bytes, asked: str | None) -> None:
    _send(handler, 200, b"<html>please log in</html>", Content_Type="text/html")


def _too_short(handler: Handler, content: bytes, asked: str | None) -> None:
    _send(handler, 200, content[:-10])


def _too_long(handler: Handler, content: bytes, asked: str | None) -> None:
    _send(handler, 200, content + bytes(10))


def _promises_more(handler: Handler, content: bytes, asked: str | None) -> None:
    _send(handler, 200, content, Content_Length=str(len(content) + 10))


def _no_number(handler: Handler, content: bytes, asked: str | None) -> None:
    _send(handler, 200, content, Content_Length="much")


def _always_breaks(handler: Handler, content: bytes, asked: str | None) -> None:
    _send(handler, 200, content[:600_000], Content_Length=str(len(content)), ETag=None)


def _packed(handler: Handler, content: bytes, asked: str | None) -> None:
    _send(handler, 200, gzip.compress(content), Content_Encoding="gzip")


def _immense(handler: Handler, content: bytes, asked: str | None) -> None:
    head = content[:128].replace(b"(512000,)", b"(1" + 15 * b"0" + b",)").replace(b" " * 7 + b"\n", b"\n")
    _send(handler, 200, head + content[128:], Content_Length=None)


def _loop(handler: Handler, content: bytes, asked: str | None) -> None:
    _send(handler, 302, b"", Location=handler.path)


def _failing(handler: Handler, content: bytes, asked: str | None) -> None:
    _send(handler, 503, b"")


def _hangs_up(handler: Handler, content: bytes, asked: str | None) -> None:
    handler.close_connection = True


REFUSED = (
    _page, _too_short, _too_long, _promises_more, _no_number, _always_breaks, _packed, _immense, _loop, _failing,
    _hangs_up,
)  # fmt: skip


@pytest.mark.parametrize("begun", [False, True], ids=["fresh", "continued"])
@pytest.mark.parametrize("answer", REFUSED, ids=lambda answer: answer.__name__)
def test_what_is_not_the_file_never_gets_its_name(
    server: Server, tmp_path: Path, answer: OutputFormat, begun: bool
) -> None:
    server.files["/a.npy"] = CONTENT
    if begun:
        server.break_after = [5000, 0]
        with pytest.raises(InputError):
            fetch(f"{server.url}/a.npy", tmp_path / "a.npy", attempts=1, pause_s=0)
    server.hostile = answer
    with pytest.raises(InputError) as refused:
        fetch(f"{server.url}/a.npy", tmp_path / "a.npy", attempts=3, pause_s=0)
    assert "a.npy: " in str(refused.value)
    assert "\n" not in str(refused.value)
    assert len(server.ranges) < 30
    assert not (tmp_path / "a.npy").exists()
    if begun and answer is _page:
        assert (tmp_path / "a.npy.part").stat().st_size == 5000, "what was received before a login page is kept"
    server.hostile = None
    fetch(f"{server.url}/a.npy", tmp_path / "a.npy", attempts=3, pause_s=0)
    assert (tmp_path / "a.npy").read_bytes() == CONTENT


@rounds(4, 30)
def test_servers_that_change_their_ways(n: int, server: Server, tmp_path: Path, survived: Counter[str]) -> None:
    server.files["/a.npy"] = CONTENT
    refused = 0
    for number in range(n):
        rng = np.random.default_rng(number)
        file = tmp_path / str(number) / "a.npy"
        file.parent.mkdir()

        def answer(handler: Handler, content: bytes, asked: str | None, rng: np.random.Generator = rng) -> None:
            ways = (*RECOVERED, *REFUSED, _breaks)
            ways[int(rng.integers(len(ways)))](handler, content, asked)

        server.hostile, refusal = answer, None
        try:
            fetch(f"{server.url}/a.npy", file, attempts=4, pause_s=0)
        except InputError as error:
            refusal = str(error)
        if refusal is not None:
            refused += 1
            assert "a.npy: " in refusal
            assert "\n" not in refusal
            assert not file.exists()
            server.hostile = None
            fetch(f"{server.url}/a.npy", file, pause_s=0)
        assert file.read_bytes() == CONTENT, f"server {number}"
    assert refused > n / 4
    survived["hostile servers"] += n


def test_parts_beside_complete_files_are_removed(server: Server, tmp_path: Path) -> None:
    arrays = (np.ones((3, 16, 16, 2), np.float16), np.ones((3, 5), np.float16), np.array([0, 1, 1], np.int8))
    for name, array in zip(CHECKED, arrays, strict=True):
        server.files[f"/gamma_test/{name}"] = npy(array)
    (folder,) = download(GAMMA, tmp_path, splits=("test",), base_url=server.url)
    (folder / "features.npy.part.json").write_text("{}")
    download(GAMMA, tmp_path, splits=("test",), base_url=server.url)
    assert sorted(file.name for file in folder.iterdir()) == [
        "checksums.json",
        "features.npy",
        "labels_gamma.npy",
        "matrices.npy",
    ]


def test_true_quantities_are_fetched_where_there_are_some(server: Server, tmp_path: Path) -> None:
    """The public scripts of the 2026 protocol need the other two archives alone; other sets take labels from it."""
    simulate_raw(COMPOSITION, tmp_path / "there", 400, seed=3, modes=("qgs_spectra",))
    for kind in ("matrices", "features"):
        file = tmp_path / "there" / f"qgs_spectra_{kind}.npz"
        server.files[f"/{file.name}"] = file.read_bytes()
    files = download_raw(COMPOSITION, tmp_path / "raw", "2026", base_url=server.url)
    assert [file.name for file in files] == ["qgs_spectra_matrices.npz", "qgs_spectra_features.npz"]
    _, test = convert(tmp_path / "raw", tmp_path / "data", COMPOSITION, protocol="2026")
    assert Dataset.open(test, COMPOSITION).groups is None
    for task, protocol in ((ENERGY, "2026"), (COMPOSITION, "v2")):
        with pytest.raises(InputError, match=r"qgs_spectra_true_features\.npz: the server answers 404"):
            download_raw(task, tmp_path / "raw", protocol, base_url=server.url)


@pytest.mark.slow
def test_raw_archives_are_continued_and_converted(server: Server, tmp_path: Path) -> None:
    simulate_raw(COMPOSITION, tmp_path / "there", 400, seed=3)
    for file in (tmp_path / "there").glob("qgs_spectra_*.npz"):
        server.files[f"/{file.name}"] = file.read_bytes()
    server.break_after = [5000]
    files = download_raw(COMPOSITION, tmp_path / "raw", "2026", base_url=server.url)
    assert server.ranges[:2] == [None, "bytes=5000-"]
    assert [file.read_bytes() for file in files] == [(tmp_path / "there" / file.name).read_bytes() for file in files]
    asked = len(server.ranges)
    download_raw(COMPOSITION, tmp_path / "raw", "2026", base_url=server.url)
    assert len(server.ranges) == asked, "complete archives are not asked for again"
    _, test = convert(tmp_path / "raw", tmp_path / "data", COMPOSITION, protocol="2026")
    assert Dataset.open(test).protocol == "2026"


@pytest.mark.parametrize("answer", [_page, _no_length, _packed], ids=lambda answer: answer.__name__)
def test_what_is_no_archive_is_refused(server: Server, tmp_path: Path, answer: OutputFormat) -> None:
    server.files["/a.npz"] = ZIP_MAGIC + bytes(5000)
    server.hostile = answer
    with pytest.raises(InputError, match=r"a\.npz: (what it sent is no NPZ archive|the server does not say how long)"):
        fetch(f"{server.url}/a.npz", tmp_path / "a.npz", attempts=2, pause_s=0, form=NPZ)
    server.hostile = None
    with pytest.raises(InputError, match="no whole NPZ archive"):
        fetch(f"{server.url}/a.npz", tmp_path / "a.npz", attempts=2, pause_s=0, form=NPZ)
    assert not list(tmp_path.iterdir())
