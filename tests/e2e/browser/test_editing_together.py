"""Several people edit one configuration at once, some on its page, some by publishing: no edit is lost."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx

from tests.dashboard.conftest import CONFIG, relu_bytes
from tests.e2e.browser.conftest import PASSWORD
from tests.support.serving_process import PATIENCE_S, wait_until
from tests.support.up_process import Up

PEOPLE = 8


class Person:
    """Somebody with a browser's session of their own who uses the REST API."""

    def __init__(self, up: Up) -> None:
        self.http = httpx.Client(base_url=up.dashboard_url, timeout=PATIENCE_S)
        token = self.http.get("/sign-in").text.split('name="csrfmiddlewaretoken" value="')[1].split('"')[0]
        self.http.post("/sign-in", data={"username": "admin", "password": PASSWORD, "csrfmiddlewaretoken": token})

    def call(self, method: str, path: str, **more: Any) -> httpx.Response:
        headers = {"X-CSRFToken": self.http.cookies["slipway_csrf"], **more.pop("headers", {})}
        return self.http.request(method, f"/api/v1/{path}", headers=headers, **more)

    def inspected(self) -> str:
        content = relu_bytes()
        files = [{"path": "model.onnx", "size": len(content)}]
        upload = self.call("POST", "uploads", json={"model_name": "together", "files": files}).json()["id"]
        raw = {"Content-Type": "application/octet-stream"}
        assert self.call("PUT", f"uploads/{upload}/files/0?offset=0", content=content, headers=raw).is_success
        assert self.call("POST", f"uploads/{upload}/complete").is_success
        wait_until(lambda: self.call("GET", f"uploads/{upload}").json()["state"] == "inspected", what="the inspection")
        return str(upload)

    def publish(self, upload: str, **asked: Any) -> httpx.Response:
        return self.call("POST", f"uploads/{upload}/publish", json={"load": False, **asked})

    def add_line(self, line: str, upload: str) -> int:
        """Until nobody was faster; how often somebody was. The first try is with what was there at the very beginning."""
        config, refused = {"text": CONFIG, "release": 1}, 0
        while True:
            text, base = f"{config['text']}{line}\n", config["release"]
            if upload:
                answer = self.publish(upload, config_text=text, base_release=base)
            else:
                answer = self.call("PUT", "models/together/config", json={"text": text, "base_release": base})
            if answer.is_success:
                return refused
            assert answer.status_code == 409, answer.text
            refused += 1
            config = self.call("GET", "models/together/config").json()


def test_no_edit_is_lost(slipway: Up) -> None:
    people = [Person(slipway) for _ in range(PEOPLE)]
    assert people[0].publish(people[0].inspected(), config_text=CONFIG).status_code == 201
    uploads = [person.inspected() if number % 2 else "" for number, person in enumerate(people)]
    lines = [f"# by person {number}" for number in range(PEOPLE)]
    with ThreadPoolExecutor(PEOPLE) as pool:
        refused = list(pool.map(lambda number: people[number].add_line(lines[number], uploads[number]), range(PEOPLE)))
    text = people[0].call("GET", "models/together/config").json()["text"]
    assert sorted(text.removeprefix(CONFIG).splitlines()) == lines
    assert sum(refused) >= PEOPLE - 1
    people[0].call("DELETE", "models/together?confirm=together")
    for person in people:
        person.http.close()
