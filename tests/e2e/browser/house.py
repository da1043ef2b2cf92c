"""A whole Slipway for a browser test: its pages, its REST API and its inference server."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
from playwright.sync_api import Browser, Page

from tests.e2e.browser.conftest import new_context, sign_in
from tests.support.serving_process import PATIENCE_S, wait_until
from tests.support.up_process import Up
from tools.screenshots import Person


class House:
    """A whole Slipway, somebody who uses its REST API, and the page of an administrator."""

    def __init__(self, up: Up, page: Page) -> None:
        self.up, self.page, self.person = up, page, Person(up.dashboard_url)

    def publish(
        self, name: str, content: bytes | str, config: str | None = None, path: str = "model.onnx", **asked: Any
    ) -> None:
        """Upload and publish a version, which is made live unless `make_live` is False."""
        content = content.encode() if isinstance(content, str) else content
        upload = self.person.call(
            "POST", "uploads", json={"model_name": name, "files": [{"path": path, "size": len(content)}]}
        )
        at, raw = f"uploads/{upload['id']}", {"Content-Type": "application/octet-stream"}
        self.person.call("PUT", f"{at}/files/0?offset=0", content=content, headers=raw)
        self.person.call("POST", f"{at}/complete")
        wait_until(lambda: self.person.call("GET", at)["state"] == "inspected", what="the inspection")
        text = {"config_text": config} if config else {}
        self.person.call("POST", f"{at}/publish", json={"make_live": True, **text, **asked})

    def model(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.person.call("GET", f"models/{name}")
        return found

    def serves(self, name: str, release: int) -> None:
        """Wait until the server says that a release of a model serves."""
        wait_until(lambda: self.model(name)["serving_release"] == release, what=f"release {release} serves")

    def fails(self, name: str) -> None:
        """Wait until the newest release of a model has failed."""
        newest = f"models/{name}/releases?page_size=1"
        wait_until(
            lambda: self.person.call("GET", newest)["results"][0]["state"] == "failed", what="the release failed"
        )

    def ask(self, name: str, version: str = "") -> list[float]:
        """Return the first output for x = [1, 2, 3], over HTTP."""
        path = f"/v2/models/{name}" + (f"/versions/{version}" if version else "")
        body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 3], "data": [1, 2, 3]}]}
        answer = httpx.post(f"{self.up.http_url}{path}/infer", json=body, timeout=PATIENCE_S, trust_env=False)
        answer.raise_for_status()
        found: list[float] = answer.json()["outputs"][0]["data"]
        return found

    def answers(self, name: str, expected: list[float]) -> None:
        def right() -> bool:
            try:
                return self.ask(name) == expected
            except httpx.HTTPError:
                return False

        wait_until(right, what=f"{name} answers {expected}")

    def reported(self, name: str) -> set[int]:
        """Return the releases of a model that the server's index names."""
        key = {"slipway-control-key": (self.up.data / "control_key").read_text()}
        address = f"{self.up.http_url}/v2/repository/index"
        index = httpx.post(address, headers=key, timeout=PATIENCE_S, trust_env=False).raise_for_status().json()
        return {row["release"] for row in index if row["name"] == name and "release" in row}

    def kill(self, *words: str) -> None:
        """SIGKILL the process whose command line has these words, and wait until another runs in its place."""
        [pid] = self.up.running(*words)
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: bool(set(self.up.running(*words)) - {pid}), what=f"{words} runs again")


@contextmanager
def visited(up: Up, browser: Browser) -> Iterator[House]:
    """A Slipway, and one page of an administrator for a whole file."""
    context = new_context(browser, up, viewport={"width": 1440, "height": 1000})
    page = context.new_page()
    sign_in(page)
    house = House(up, page)
    yield house
    house.person.http.close()
    context.close()
