"""Debian's OCI registry on loopback, with or without a password."""

import base64
import contextlib
import json
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx

from tests.support.engines import Engine
from tests.support.ports import free_port

PROGRAM = shutil.which("docker-registry")
USER, PASSWORD = "olga", "a-secret-password"
_HASHED = "$2b$04$6tWrOG82NMXqKzsJ1jcgOOdYUZRMhLpeitybm0jHBC2TtcURcaimW"  # by bcrypt


class RegistryServer:
    """A registry that keeps its blobs in a folder. host: as in an address of an artefact."""

    def __init__(self, folder: Path, *, locked: bool = False) -> None:
        port = free_port()
        self.folder = folder
        self.host, self.url, self._auth = (
            f"127.0.0.1:{port}",
            f"http://127.0.0.1:{port}",
            (USER, PASSWORD) if locked else None,
        )
        settings = {
            "version": 0.1,
            "log": {"accesslog": {"disabled": True}},
            "storage": {"filesystem": {"rootdirectory": str(folder / "blobs")}},
            "http": {"addr": self.host},
        }
        if locked:
            people = folder / "htpasswd"
            people.write_text(f"{USER}:{_HASHED}\n")
            settings["auth"] = {"htpasswd": {"realm": "registry", "path": str(people)}}
        config = folder / "registry.json"
        config.write_text(json.dumps(settings))
        # A shell that runs in the background lets its programs ignore SIGINT.
        self.engine = Engine(PROGRAM, "serve", config, port=port, end=signal.SIGTERM)

    def get(self, path: str, **headers: str) -> httpx.Response:
        return httpx.get(f"{self.url}/v2/{path}", headers=headers, auth=self._auth, follow_redirects=True)

    def put(self, path: str, content: bytes, kind: str) -> httpx.Response:
        return httpx.put(f"{self.url}/v2/{path}", content=content, headers={"Content-Type": kind}, auth=self._auth)


@contextlib.contextmanager
def registry(folder: Path, *, locked: bool = False) -> Iterator[RegistryServer]:
    server = RegistryServer(folder, locked=locked)
    server.engine.start()
    try:
        yield server
    finally:
        server.engine.stop()


def credentials(path: Path, host: str, password: str = PASSWORD) -> Path:
    """Write Docker's file of credentials for a registry."""
    pair = base64.b64encode(f"{USER}:{password}".encode()).decode("ascii")
    path.write_text(json.dumps({"auths": {host: {"auth": pair}}}))
    return path
