"""Attacks on allowed_urls: archives come from one folder and one address, and no other code runs."""

import http.server
import os
import threading
import urllib.parse
from collections.abc import Iterator

import pytest

from tests.support.torchserve_archives import archive
from tests.support.torchserve_server import TorchServeServer

RAN = """
import pathlib
pathlib.Path("{marker}").write_text("ran")

def handle(data, context):
    return data and [b"ran"] * len(data)
"""


class _Archives(http.server.BaseHTTPRequestHandler):
    """Decodes and resolves a path before it looks, as many servers do. /allowed/moved.mar redirects to what is not allowed."""

    content: dict[str, bytes] = {}

    def do_GET(self) -> None:
        if self.path == "/allowed/moved.mar":
            self.send_response(302)
            self.send_header("Location", "/allowed/%2e%2e/evil.mar")
            self.end_headers()
            return
        path = urllib.parse.unquote(urllib.parse.unquote(self.path)).replace("\\", "/").replace("/..;", "/..")
        body = self.content.get(os.path.normpath(path), b"")
        self.send_response(200 if body else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Tests need no log of requests."""


@pytest.fixture(scope="module")
def archives() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Archives)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, archives: str) -> Iterator[TorchServeServer]:
    """`evil.mar` lies beside what is allowed, and leaves the file `ran` where its handler is imported."""
    folder = tmp_path_factory.mktemp("allowed").resolve()
    evil = archive(folder / "outside" / "evil.mar", handler=RAN.format(marker=folder / "ran"))
    good = archive(folder / "allowed" / "good one.mar", "good")
    (folder / "Allowed").mkdir()
    archive(folder / "Allowed" / "evil.mar", handler=RAN.format(marker=folder / "ran"))
    (folder / "allowed" / "deep").mkdir()
    (folder / "allowed" / "link.mar").symlink_to(evil)
    (folder / "allowed" / "way").symlink_to(evil.parent)
    (folder / "allowed" / "within.mar").symlink_to(good)
    _Archives.content = {"/evil.mar": evil.read_bytes(), "/allowed/good.mar": good.read_bytes()}
    (folder / "store").mkdir()
    (folder / "store" / "leads.mar").symlink_to(evil)
    (folder / "store" / "evil_folder").symlink_to(evil.parent)
    allowed = f"file://{folder}/allowed/.*,{archives}/allowed/.*"
    with TorchServeServer(folder, properties={"allowed_urls": allowed}) as running:
        yield running


def register(server: TorchServeServer, url: str) -> int:
    asked = urllib.parse.urlencode({"url": url, "model_name": "asked", "initial_workers": 1})
    return server.manage("POST", f"/models?{asked}").status


FILES = [
    *("%2e%2e/outside/evil.mar", "%2E%2E/outside/evil.mar", ".%2e/outside/evil.mar", "%2e./outside/evil.mar"),
    *("deep/%2e%2e/%2e%2e/outside/evil.mar", "%2e%2e%2foutside%2fevil.mar", "deep%2f..%2f..%2foutside/evil.mar"),
    *("..%2foutside/evil.mar", "../outside/evil.mar", "%252e%252e/outside/evil.mar", "%25252e%25252e/outside/evil.mar"),
    *("%2e%2e;x/outside/evil.mar", "%2e%2e%5coutside%5cevil.mar", "%c0%ae%c0%ae/outside/evil.mar", "%2e%2e%00/x.mar"),
    *(
        "link.mar",
        "l%69nk.mar",
        "way/evil.mar",
        "way%2fevil.mar",
        "/%2e%2e/outside/evil.mar",
        "%2e%2e/Allowed/evil.mar",
    ),
]


@pytest.mark.parametrize("way", FILES)
def test_no_encoding_leads_a_file_address_out_of_the_folder_that_is_allowed(server: TorchServeServer, way: str) -> None:
    for scheme in ("file://", "FILE://", "file://localhost", "file://elsewhere"):
        assert register(server, f"{scheme}{server.folder}/allowed/{way}") in (400, 404)
    assert not (server.folder / "ran").exists()
    assert server.manage("GET", "/models").body["models"] == []


@pytest.mark.parametrize(
    "url",
    [
        "file://{0}/Allowed/evil.mar",
        "file://{0}/outside/evil.mar?x={0}/allowed/",
        "file://elsewhere{0}/allowed/good%20one.mar",
    ],
)
def test_a_folder_or_machine_of_another_name_is_not_the_one_that_is_allowed(server: TorchServeServer, url: str) -> None:
    assert register(server, url.format(server.folder)) == 404


WAYS = [
    *(
        "%2e%2e/evil.mar",
        "%2E%2e/evil.mar",
        "..%2fevil.mar",
        "%2e%2e%2fevil.mar",
        "%252e%252e/evil.mar",
        "%2e%2e%5cevil.mar",
    ),
    *("x/%2e%2e/%2e%2e/evil.mar", "%2e%2e;a=b/evil.mar", "%2e%2e%3b/evil.mar", "..%5cevil.mar", "moved.mar"),
]


@pytest.mark.parametrize("way", WAYS)
def test_no_encoding_leads_a_web_address_out_of_the_path_that_is_allowed(
    server: TorchServeServer, archives: str, way: str
) -> None:
    assert register(server, f"{archives}/allowed/{way}") in (400, 404)
    assert not (server.folder / "ran").exists()


@pytest.mark.parametrize("name", ["leads.mar", "evil_folder", "{0}/store/evil_folder"])
def test_a_link_out_of_the_store_is_no_archive_of_the_store(server: TorchServeServer, name: str) -> None:
    assert register(server, name.format(server.folder)) == 404
    assert not (server.folder / "ran").exists()


def test_an_allowed_address_is_fetched_in_any_form(server: TorchServeServer, archives: str) -> None:
    inside = f"{server.folder}/allowed"
    for url in (
        f"file://{inside}/good%20one.mar",
        f"file://localhost{inside}/%67ood%20one.mar",
        f"file://{inside}/within.mar",
        f"{archives}/%61llowed/good.mar",
    ):
        assert register(server, url) == 200, url
        assert server.manage("DELETE", "/models/asked").status == 200
