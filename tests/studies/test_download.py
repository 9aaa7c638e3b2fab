"""Fetching through pooch, from a server that breaks off, lies or knows no ranges."""

import hashlib
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from bbh_studies.datasets import DataError
from bbh_studies.datasets.sources import IdxFile

CONTENT = bytes(range(256)) * 2000
# Of the half that arrives before a break, whole chunks are kept.
KEPT = len(CONTENT) // 2 // 2**16 * 2**16


class Server(ThreadingHTTPServer):
    """Serves CONTENT; ``breaks`` times only the first half of what was asked for."""

    def __init__(self, *, breaks=0, ranges=True):
        super().__init__(("127.0.0.1", 0), Handler)
        self.breaks = breaks
        self.ranges = ranges
        self.sent = []

    @property
    def address(self):
        return f"http://127.0.0.1:{self.server_port}/"


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        wanted = self.headers.get("Range")
        first = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted else 0
        if not self.server.ranges:
            first = 0
        if first >= len(CONTENT):
            self.send_error(416)
            return
        body = CONTENT[first:]
        self.send_response(206 if first else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.server.breaks:
            self.server.breaks -= 1
            body = body[: len(body) // 2]
        self.server.sent.append(len(body))
        self.wfile.write(body)

    def log_message(self, *arguments):
        pass


@pytest.fixture
def serve(tmp_path, monkeypatch):
    monkeypatch.setenv("BBH_CACHE", str(tmp_path))
    servers = []

    def start(**behaviour):
        server = Server(**behaviour)
        servers.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        source = IdxFile(
            "things", "file", hashlib.sha256(CONTENT).hexdigest(), (server.address,), (1,), ""
        )
        return server, source

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def files(tmp_path):
    return {path.name: path.stat().st_size for path in (tmp_path / "things").iterdir()}


def test_a_download_that_broke_off_goes_on(serve, tmp_path):
    server, source = serve(breaks=1)
    with pytest.raises(DataError, match="could not be fetched"):
        source.fetch()
    assert files(tmp_path) == {"file.gz.part": KEPT}
    assert source.fetch().read_bytes() == CONTENT
    assert server.sent == [len(CONTENT) // 2, len(CONTENT) - KEPT]
    assert files(tmp_path) == {"file.gz": len(CONTENT)}
    # What is there is not asked for again.
    source.fetch()
    assert len(server.sent) == 2


def test_the_next_mirror_goes_on_with_it(serve):
    broken, source = serve(breaks=9)
    whole, _ = serve()
    both = replace(source, mirrors=(broken.address, whole.address))
    assert both.fetch().read_bytes() == CONTENT
    assert whole.sent == [len(CONTENT) - KEPT]


def test_servers_without_ranges_start_again(serve):
    server, source = serve(breaks=1, ranges=False)
    with pytest.raises(DataError):
        source.fetch()
    assert source.fetch().read_bytes() == CONTENT
    assert server.sent[-1] == len(CONTENT)


def test_a_partial_file_longer_than_the_file_is_dropped(serve, tmp_path):
    _, source = serve()
    (tmp_path / "things").mkdir()
    (tmp_path / "things" / "file.gz.part").write_bytes(CONTENT + b"more")
    assert source.fetch().read_bytes() == CONTENT


def test_wrong_content_is_neither_kept_nor_used_again(serve, tmp_path):
    _, source = serve()
    (tmp_path / "things").mkdir()
    (tmp_path / "things" / "file.gz.part").write_bytes(b"something else")
    with pytest.raises(DataError, match="ValueError"):
        source.fetch()
    assert files(tmp_path) == {}
    assert source.fetch().read_bytes() == CONTENT
