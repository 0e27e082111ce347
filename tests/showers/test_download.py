"""Downloads against a server on this machine that can break connections, change files and refuse."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from showers.dataset import Dataset
from showers.download import download, fetch
from showers.schema import GAMMA, InputError


class Server(ThreadingHTTPServer):
    """Serves ``files``; ``break_after`` bytes it drops the connection, once per entry."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {}
        self.tag = '"one"'
        self.break_after: list[int] = []
        self.ranges: list[str | None] = []

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
        start = 0
        if asked and self.headers.get("If-Range") == self.server.tag:
            start = int(asked.removeprefix("bytes=").removesuffix("-"))
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(content) - start))
        self.send_header("ETag", self.server.tag)
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


CONTENT = bytes(range(256)) * 4000


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
    server.files["/a.npy"] = CONTENT[::-1]
    server.tag = '"two"'
    fetch(f"{server.url}/a.npy", tmp_path / "a.npy", pause_s=0)
    assert (tmp_path / "a.npy").read_bytes() == CONTENT[::-1]


def test_missing_file_is_refused_with_its_address(server: Server, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nothing\.npy: the server answers 404"):
        fetch(f"{server.url}/nothing.npy", tmp_path / "nothing.npy")


def test_unreachable_server_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="gave up after 2 attempts"):
        fetch("http://127.0.0.1:1/a.npy", tmp_path / "a.npy", attempts=2, pause_s=0)


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
