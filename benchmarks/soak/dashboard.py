"""The actions of a person during the load: publish, configure, load and unload, over the dashboard's REST API."""

import asyncio
import hashlib
import re
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx

from benchmarks.soak import models
from tests.support.up_process import Up

PATIENCE_S = 180.0
RIGHTS = ["read", "write", "upload_code", "infer"]


class Dashboard:
    """A client of the dashboard with a token. Requests are repeated while the dashboard restarts."""

    def __init__(self, up: Up) -> None:
        self._up = up
        self._client = httpx.AsyncClient(base_url=up.dashboard_url, timeout=60.0, follow_redirects=True)

    async def sign_in(self) -> None:
        page = (await self._client.get("/sign-in")).text
        found = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', page)
        assert found is not None
        form = {"username": "admin", "password": self._up.password, "csrfmiddlewaretoken": found[1]}
        origin = {"Referer": f"{self._up.dashboard_url}/sign-in"}
        (await self._client.post("/sign-in", data=form, headers=origin)).raise_for_status()
        headers = {**origin, "X-CSRFToken": self._client.cookies["slipway_csrf"]}
        answer = await self._client.post("/api/v1/tokens", json={"name": "soak", "rights": RIGHTS}, headers=headers)
        answer.raise_for_status()
        self._client.cookies.clear()
        self._client.headers["Authorization"] = f"Bearer {answer.json()['token']}"

    async def close(self) -> None:
        await self._client.aclose()

    async def ask(self, method: str, path: str, **more: Any) -> Any:
        """Return the JSON of the answer. Raise RuntimeError with the message of a refusal, TimeoutError without an answer."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                answer = await self._client.request(method, f"/api/v1/{path}", **more)
            except httpx.HTTPError:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"the dashboard has not answered {method} {path}") from None
                await asyncio.sleep(0.2)
                continue
            if answer.is_error:
                raise RuntimeError(f"{method} {path}: {answer.status_code} {answer.text[:300]}")
            return answer.json() if answer.content else None

    # -- models ------------------------------------------------------------------------------------------------------
    async def take_over(self) -> None:
        """Put the soak's models into the repository and under management, and load them."""
        models.write_models(self._up.data / "models")
        for name in models.NAMES:
            await self.ask("POST", f"models/{name}/adopt")
        for name in models.NAMES:
            await self.ask("POST", f"models/{name}/load")
        for name in models.NAMES:
            await self.becomes(name, "ready")

    async def becomes(self, name: str, state: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while (found := (await self.ask("GET", f"models/{name}")))["state"] != state:
            if time.monotonic() > deadline:
                raise TimeoutError(f"'{name}' is {found['state']} ({found['reason']}) and has not become {state}")
            await asyncio.sleep(0.1)

    async def configure(self, name: str, pattern: str, replacement: str) -> None:
        """Replace a part of the text of the configuration."""
        config = await self.ask("GET", f"models/{name}/config")
        text = re.sub(pattern, replacement, config["text"])
        await self.ask("PUT", f"models/{name}/config", json={"text": text, "base_release": config["release"]})

    async def load(self, name: str) -> None:
        await self.ask("POST", f"models/{name}/load")
        await self.becomes(name, "ready")

    async def unload(self, name: str) -> None:
        await self.ask("POST", f"models/{name}/unload")
        await self.becomes(name, "unloaded")

    async def versions(self, name: str, state: str = "published") -> list[int]:
        """Return the versions in this state among the newest hundred, newest first."""
        rows = await self.ask("GET", f"models/{name}/versions", params={"page_size": 100})
        return sorted((row["number"] for row in rows["results"] if row["state"] == state), reverse=True)

    async def expendable_versions(self, name: str) -> list[int]:
        """Return the versions that can be archived among the newest hundred, newest first."""
        rows = await self.ask("GET", f"models/{name}/versions", params={"page_size": 100})
        spare = [row["number"] for row in rows["results"] if row["state"] == "published" and not row["protected"]]
        return sorted(spare, reverse=True)

    async def make_live(self, name: str, number: int) -> None:
        await self.ask("POST", f"models/{name}/versions/{number}/make_live", json={"load": True})

    async def publish(self, name: str, factor: float) -> int:
        """Upload a new version, wait for its inspection, publish it and make it live. Return its number."""
        with tempfile.TemporaryDirectory() as folder:
            files = models.version_files(name, factor, Path(folder))
        rows = [
            {"path": path, "size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
            for path, content in files.items()
        ]
        upload = (await self.ask("POST", "uploads", json={"model_name": name, "files": rows}))["id"]
        for index, content in enumerate(files.values()):
            await self._send(upload, index, content)
        await self.ask("POST", f"uploads/{upload}/complete")
        await self._inspected(upload)
        config = (await self.ask("GET", f"models/{name}/config"))["text"]
        body = {"config_text": config, "make_live": True, "load": True}
        version = await self.ask("POST", f"uploads/{upload}/publish", json=body)
        return int(version.get("number") or await self._number(version["id"]))

    async def _send(self, upload: str, index: int, content: bytes) -> None:
        """Send a chunk. After a lost answer, a second try gets 409, because the dashboard already has the chunk."""
        try:
            await self.ask("PUT", f"uploads/{upload}/files/{index}", params={"offset": 0}, content=content)
        except RuntimeError as error:
            if "409" not in str(error):
                raise

    async def _inspected(self, upload: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while (found := (await self.ask("GET", f"uploads/{upload}")))["state"] != "inspected":
            if found["state"] == "failed" or time.monotonic() > deadline:
                raise TimeoutError(f"the upload is {found['state']}: {found['error']}")
            await asyncio.sleep(0.1)

    async def _number(self, job: int) -> int:
        deadline = time.monotonic() + PATIENCE_S
        while (found := (await self.ask("GET", f"jobs/{job}")))["state"] != "succeeded":
            if found["state"] in ("failed", "cancelled") or time.monotonic() > deadline:
                raise TimeoutError(f"the publication {found['state']}: {found['error']}")
            await asyncio.sleep(0.1)
        return int(found["result"]["version"])
