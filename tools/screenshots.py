"""Takes pictures of every page, for people to check: light and dark, 1440 and 390 px wide, full, failing and empty.

    make screenshots                                  into ./screenshots, after a minute of traffic
    python -m tools.screenshots --traffic 900 --docs  also the picture of the README, into docs/images
    python -m tools.screenshots --guide               only the pictures of docs/guide.md, into docs/images/guide (journey.py)

The program runs a real Slipway with a separate data folder, real requests, a failed model and a degraded model.
"""

import argparse
import math
import os
import random
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import django
import httpx
from playwright.sync_api import Browser, Page, expect, sync_playwright

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
django.setup()

from tests.dashboard.fleet.stand_in import answers, recorded, settings_for  # noqa: E402
from tests.dashboard.uploads.file_server import FileServer, WebFile, file_server  # noqa: E402
from tests.e2e.browser.conftest import ARGUMENTS, PASSWORD, sign_in  # noqa: E402
from tests.support.certificates import Authority  # noqa: E402
from tests.support.clients import clients  # noqa: E402
from tests.support.up_process import Up  # noqa: E402
from tools.journey import save, take_journey  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent
WIDTHS = {1440: 900, 390: 800}
SOURCES = {
    "SLIPWAY_SOURCE_FOLDERS": "/srv/models",
    "SLIPWAY_SOURCE_BUCKETS": "s3://models/released",
    "SLIPWAY_SOURCE_URLS": "https://models.example.org/public",
    "SLIPWAY_SOURCE_MLFLOW": "https://mlflow.example.org",
    "SLIPWAY_SOURCE_REGISTRIES": "https://registry.example.org/models",
    "SLIPWAY_EXPORT_REGISTRIES": "https://registry.example.org/models",
}
GUIDE = ROOT / "docs" / "images" / "guide"
FULL = {
    "overview": "/",
    "models": "/models/",
    "model": "/models/digits/",
    "requests": "/models/digits/requests",
    "versions": "/models/digits/versions",
    "releases": "/models/digits/releases/",
    "release": "/models/doubled/releases/1/",
    "canary": "/models/ranked/releases/",
    "rolled-back": "/models/tagged/releases/",
    "all-rollouts": "/rollouts/",
    "usage-not-counted": "/usage/",
    "rollouts": "/models/tagged/rollouts/",
    "alerts": "/alerts/",
    "alert-channels": "/alerts/channels",
    "objective": "/models/digits/objective",
    "rollout-new": "/models/tagged/rollouts/new?candidate=2",
    "benchmark": "/models/digits/versions/1/benchmark",
    "benchmarks": "/benchmarks?run=1&run=2",
    "batches": "/models/digits/batches",
    "tune": "/models/digits/versions/1/tune",
    "data-drift": "/models/scored/data-drift",
    "truth": "/models/scored/truth",
    "captures": "/models/scored/captures",
    "compare": "/models/digits/compare?a=v1&b=v2",
    "compare-releases": "/models/doubled/compare?a=r1&b=r2",
    "failed-releases": "/models/doubled/releases/",
    "configuration": "/models/digits/configuration",
    "advice": "/models/digits/advice",
    "playground": "/models/digits/playground",
    "model-activity": "/models/digits/activity",
    "model-log": "/models/doubled/log",
    "upload": "/models/new",
    "upload-from-source": "/models/new?from=hugging_face",
    "import": "/models/import",
    "jobs": "/jobs/",
    "job": "/jobs/1/",
    "servers": "/servers/",
    "doctor": "/doctor/",
    "server": "/servers/local/",
    "server-memory": "/servers/local/memory",
    "environments": "/environments/",
    "environment": "/environments/production/",
    "deployments": "/environments/production/deployments/",
    "policy": "/environments/production/policy/",
    "activity": "/activity/",
    "settings": "/settings/",
    "api": "/api/v1/docs",
    "failed-model": "/models/broken/",
    "degraded-model": "/models/doubled/",
    "asleep-model": "/models/sleepy/",
    "ensemble-playground": "/models/text_pipeline/playground",
    "filtered-to-nothing": "/models/?q=nothing",
    "not-found": "/models/nowhere/",
}
EMPTY = {
    "empty-overview": "/",
    "empty-models": "/models/",
    "empty-jobs": "/jobs/?state=failed",
    "empty-server": "/servers/local/",
}
FRESH = {"empty-data-drift": "/models/digits/data-drift", "empty-truth": "/models/digits/truth"}
CLUSTER = {"pods": "/environments/eu/", "replicas": "/environments/eu/replicas/?hours=1"}
AWAY = {"pods-away": "/environments/eu/", "replicas-away": "/environments/eu/replicas/?hours=1"}
COUNTED = {"usage": "/usage/?by=token", "usage-of-groups": "/usage/?by=group"}
WORKING = b"""import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        tensors = [pb_utils.get_input_tensor_by_name(request, "x").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", tensor * 2)]) for tensor in tensors]
"""
# This version answers like the first version, except that one request of two hundred fails and one number is a little off.
CANDIDATE = b"""import triton_python_backend_utils as pb_utils

seen = 0


class TritonPythonModel:
    def execute(self, requests):
        return [self.one(pb_utils.get_input_tensor_by_name(request, "x").as_numpy()) for request in requests]

    def one(self, x):
        global seen
        seen += 1
        if seen % 200 == 0:
            return pb_utils.InferenceResponse(error=pb_utils.TritonError("no answer for this one"))
        y = x * 2
        y[:, 1] += 0.001 * (seen % 7)
        return pb_utils.InferenceResponse([pb_utils.Tensor("y", y)])
"""
FAILING = b"""class TritonPythonModel:
    def execute(self, requests):
        raise RuntimeError("the weights do not fit")
"""
PLAN = {
    "steps": [{"weight": weight, "bake_s": 3600} for weight in (25, 50, 100)],
    "shadow": {"share": 25, "absolute": 0.004},
    "guardrails": [
        {"metric": "errors", "margin": 0.02},
        {"metric": "latency", "quantile": 0.99, "ratio": 2},
        {"metric": "disagreement", "limit": 0.6},
    ],
    "min_samples": 30,
}
BROKEN = b"""class TritonPythonModel:
    def initialize(self, args):
        raise RuntimeError("the weights file is missing")

    def execute(self, requests):
        return []
"""
CONFIG = """backend: "python"
max_batch_size: 8
input [ { name: "x" data_type: TYPE_FP32 dims: [ 3 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 3 ] } ]
"""

ASLEEP = 'parameters { key: "slipway.residency" value { string_value: "{\\"mode\\": \\"on_demand\\"}" } }\n'


class Person:
    """A person with a browser session who uses the REST API."""

    def __init__(self, address: str) -> None:
        self.http = httpx.Client(base_url=address, timeout=60)
        token = self.http.get("/sign-in").text.split('name="csrfmiddlewaretoken" value="')[1].split('"')[0]
        self.http.post("/sign-in", data={"username": "admin", "password": PASSWORD, "csrfmiddlewaretoken": token})

    def __enter__(self) -> "Person":
        return self

    def __exit__(self, *_: object) -> None:
        self.http.close()

    def call(self, method: str, path: str, **more: Any) -> Any:
        headers = {"X-CSRFToken": self.http.cookies["slipway_csrf"], **more.pop("headers", {})}
        answer = self.http.request(method, f"/api/v1/{path}", headers=headers, **more)
        assert answer.is_success, answer.text
        return answer.json() if answer.content else None

    def publish(self, name: str, path: str, content: bytes, config: str | None = None, *, live: bool = True) -> None:
        upload = self.call(
            "POST", "uploads", json={"model_name": name, "files": [{"path": path, "size": len(content)}]}
        )
        at = f"uploads/{upload['id']}"
        self.call(
            "PUT", f"{at}/files/0?offset=0", content=content, headers={"Content-Type": "application/octet-stream"}
        )
        self.call("POST", f"{at}/complete")
        wait(lambda: self.call("GET", at)["state"] in ("inspected", "failed"))
        asked = {"make_live": live, "load": live, "note": "For the pictures"} | (
            {"config_text": config} if config else {}
        )
        self.call("POST", f"{at}/publish", json=asked)
        wait(lambda: self.call("GET", at)["state"] != "publishing")

    def wait_for_state(self, name: str, *states: str) -> None:
        wait(lambda: self.call("GET", f"models/{name}")["state"] in states)


def wait(condition: Any, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "what the pictures need did not come about"
        time.sleep(0.2)


def prepare(person: Person) -> None:
    """Publish models that fail, that have a new version which fails while the old one serves, and that wait for a request."""
    person.publish("doubled", "model.py", WORKING, CONFIG)
    person.wait_for_state("doubled", "ready")
    person.publish("doubled", "model.py", BROKEN, CONFIG)
    person.publish("broken", "model.py", BROKEN, CONFIG)
    person.publish("sleepy", "model.py", WORKING, CONFIG + ASLEEP)
    person.wait_for_state("broken", "failed")
    person.wait_for_state("sleepy", "asleep")
    person.wait_for_state("doubled", "degraded")
    roll_out(person)
    blank = {"name": "image", "datatype": "FP32", "shape": [1, 1, 8, 8], "data": [0] * 64}
    person.wait_for_state("digits", "ready")
    person.call("POST", "models/digits/examples", json={"name": "nothing drawn", "request": {"inputs": [blank]}})
    answer = person.call("POST", "models/digits/examples/nothing drawn/answer", json={})
    person.call("PATCH", "models/digits/examples/nothing drawn", json={"expected": answer, "golden": True})
    for name in ("digits", "digits_torch"):
        measurements = f"models/{name}/versions/1/measurements"
        person.call("POST", measurements, json={"loads": [1, 4], "window_s": 0.5})
        wait(lambda at=measurements: person.call("GET", at)["results"][0]["state"] == "done")


def roll_out(person: Person) -> None:
    """Start a canary that continues, and a canary whose answers fail, so that it is rolled back after some requests."""
    for name, candidate, plan in (("ranked", CANDIDATE, PLAN), ("tagged", FAILING, {"min_samples": 10})):
        person.publish(name, "model.py", WORKING, CONFIG)
        person.wait_for_state(name, "ready")
        person.publish(name, "model.py", candidate, live=False)
        person.call("POST", f"models/{name}/rollouts", json={"candidate": 2, "plan": plan})


def compare_quality(person: Person, address: str) -> None:
    """Publish a model with a capture as a reference, a second one whose requests are shifted at its end, and labels."""
    person.publish("scored", "model.py", WORKING, CONFIG)
    person.wait_for_state("scored", "ready")
    random.seed(1)
    reference, _ = capture(person, address, [0.0] * 300)
    _, answered = capture(person, address, [0.0] * 400 + [0.7] * 200)
    monitor = person.call("POST", "models/scored/drift-monitors", json={"capture": reference, "window": 200})
    wait(lambda: person.call("GET", f"models/scored/drift-monitors/{monitor['id']}")["windows"] == 3)
    person.call("PUT", "models/scored/truth", json={"kind": "accuracy", "limit": 0.05, "bound": 0.95})
    labels = [
        {"id": name, "label": random.choice((best,) * 8 + ((best + 1) % 3, "unsure"))}
        for name, best in answered.items()
    ]
    person.call("POST", "models/scored/labels", json={"labels": [*labels, {"id": "of-no-request", "label": 1}]})
    wait(lambda: person.call("GET", "models/scored/truth")["metric"]["trouble"], 120)


def capture(person: Person, address: str, shifts: list[float]) -> tuple[str, dict[str, int]]:
    """Send a request for each shift of its first number; return the capture's id, and each request's highest number."""
    at = "models/scored/captures"
    pk = person.call("POST", at, json={"percent": 100, "consent": True})["id"]
    wait(lambda: person.call("GET", f"{at}/{pk}")["counts"])
    best = {}
    with httpx.Client(timeout=60) as http:
        for place, shift in enumerate(shifts):
            x = [random.gauss(shift), random.gauss(0), random.gauss(0)]
            name = f"{pk[:8]}-{place}"
            best[name] = x.index(max(x))
            row = {"name": "x", "datatype": "FP32", "shape": [1, 3], "data": x}
            http.post(f"{address}/v2/models/scored/infer", json={"id": name, "inputs": [row]}).raise_for_status()
    person.call("POST", f"{at}/{pk}/stop")
    wait(lambda: person.call("GET", f"{at}/{pk}")["counts"]["written"] == len(shifts))
    return pk, best


def use(person: Person, address: str) -> None:
    """Send requests with two tokens, one of which reaches its quota."""
    tokens = [person.call("POST", "tokens", json={"name": name, "rights": ["infer"]}) for name in ("shop", "nightly")]
    for of, name, limits in (
        ("person", "admin", {"requests_per_day": 1000, "requests_per_second": 50}),
        ("token", tokens[0]["prefix"], {"requests_per_day": 20, "compute_seconds_per_day": 600}),
    ):
        person.call("POST", "usage/quotas", json={"of": of, "name": name, **limits})
    person.wait_for_state("digits", "ready")
    time.sleep(3)  # the server reads the quotas within two seconds
    body = {"inputs": [{"name": "image", "datatype": "FP32", "shape": [1, 1, 8, 8], "data": [0] * 64}]}
    with httpx.Client(timeout=60) as http:
        for token, count in zip(tokens, (30, 60), strict=True):
            for _ in range(count):
                http.post(
                    f"{address}/v2/models/digits/infer",
                    json=body,
                    headers={"Authorization": f"Bearer {token['token']}"},
                )
    wait(lambda: person.call("GET", "usage")["total"]["requests"] >= 60)


@contextmanager
def cluster(person: Person) -> Iterator[FileServer]:
    """A cluster whose servers have trouble, and an operator who sets their number."""
    recording, known = recorded(timedelta(minutes=10)), "environments/eu/replicas"
    with tempfile.TemporaryDirectory(prefix="slipway-pictures-") as folder:
        authority = Authority(Path(folder) / "authority")
        with file_server(authority.sign("kubernetes")) as server:
            for replicas in (4, 8):
                recording["deployment"]["spec"]["replicas"] = replicas
                answers(server, **recording)
                if replicas == 4:
                    person.call("POST", "environments", json=settings_for(server, authority))
                wait(lambda wanted=replicas: person.call("GET", known)["wanted"] == wanted)
            answers(server, hpas={"items": []})
            wait(lambda: not person.call("GET", known)["refusal"])
            yield server


def empty(person: Person) -> None:
    """Delete every model."""
    names = [row["name"] for row in person.call("GET", "models")["results"]]
    for name in names:
        person.call("POST", f"models/{name}/unload")
    for name in names:
        person.wait_for_state(name, "unloaded")
        person.call("DELETE", f"models/{name}?confirm={name}")


def traffic(address: str) -> AbstractContextManager[None]:
    """Send requests at a rate that rises and falls, a few of them invalid, until the block ends."""

    def send(http: httpx.Client) -> None:
        rows = random.choice((1, 1, 2, 4, 8))
        name = "image" if random.random() > 0.01 else "picture"
        tensor = {"name": name, "datatype": "FP32", "shape": [rows, 1, 8, 8], "data": [1.0] * 64 * rows}
        model = random.choice(("digits", "digits", "digits", "digits_torch"))
        http.post(f"{address}/v2/models/{model}/infer", json={"inputs": [tensor]})
        row = {"name": "x", "datatype": "FP32", "shape": [1, 3], "data": [random.random() for _ in range(3)]}
        http.post(f"{address}/v2/models/{random.choice(('ranked', 'tagged'))}/infer", json={"inputs": [row]})

    return clients(send, count=4, pause=lambda: random.random() * 0.09 * (1.2 + math.sin(time.time() / 70)))


def take(browser: Browser, address: str, pages: dict[str, str], folder: Path) -> None:
    for theme in ("light", "dark"):
        for width, height in WIDTHS.items():
            context = browser.new_context(
                base_url=address, viewport={"width": width, "height": height}, color_scheme=theme, is_mobile=width < 500
            )
            page = context.new_page()
            page.goto("/sign-in")
            page.screenshot(path=folder / f"sign-in-{theme}-{width}.png")
            sign_in(page)
            for name, path in pages.items():
                page.goto(path)
                wait_until_drawn(page)
                page.screenshot(path=folder / f"{name}-{theme}-{width}.png", full_page=True)
                print(folder / f"{name}-{theme}-{width}.png")
            context.close()


def wait_until_drawn(page: Page) -> None:
    """Wait until the page is live and every chart is drawn. A chart is drawn only when it becomes visible."""
    if page.locator("#freshness").count():
        expect(page.locator("#freshness")).to_have_text("up to date", timeout=30_000)
    for figure in page.locator("[data-chart]:visible").all():
        figure.scroll_into_view_if_needed()
        figure.locator(".main-svg, .blank").first.wait_for()
    if page.locator("#config-status").count():
        expect(page.locator("#config-status")).not_to_have_text("checking")
    page.evaluate("scrollTo(0, 0)")


def take_for_readme(browser: Browser, address: str) -> None:
    context = browser.new_context(base_url=address, viewport={"width": 1440, "height": 960}, color_scheme="light")
    page = context.new_page()
    sign_in(page)
    page.goto(FULL["model"])
    wait_until_drawn(page)
    path = ROOT / "docs" / "images" / "model.png"
    page.screenshot(path=path)
    save(path)
    context.close()


@contextmanager
def slipway(**more: str) -> Iterator[Up]:
    folder = tempfile.TemporaryDirectory(prefix="slipway-pictures-")
    with folder, Up(Path(folder.name) / "data", SLIPWAY_ADMIN_PASSWORD=PASSWORD, **SOURCES, **more) as up:
        yield up.start()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "screenshots")
    parser.add_argument("--traffic", type=float, default=60, help="seconds of requests before the pictures")
    parser.add_argument("--docs", action="store_true", help="also take the picture of the README")
    parser.add_argument("--guide", action="store_true", help="take the pictures of the guide instead")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=ARGUMENTS)
        if given.guide:
            with slipway() as up, traffic(up.http_url):
                time.sleep(given.traffic)
                take_journey(browser, up, GUIDE, sign_in, wait_until_drawn)
            return
        with slipway() as up, traffic(up.http_url):
            time.sleep(given.traffic)
            if given.docs:
                take_for_readme(browser, up.dashboard_url)
            with Person(up.dashboard_url) as person:
                prepare(person)
                compare_quality(person, up.http_url)
                wait(lambda: person.call("GET", "models/tagged/rollouts")["results"][0]["state"] == "rolled_back")
                time.sleep(given.traffic)  # the time to collect figures of both arms
            take(browser, up.dashboard_url, FULL, given.out)
        with slipway(SLIPWAY_REQUIRE_TOKENS="1", SLIPWAY_DEVICE_HOUR_PRICE="2.50 EUR") as up:
            with Person(up.dashboard_url) as person:
                use(person, up.http_url)
            take(browser, up.dashboard_url, COUNTED, given.out)
        with slipway() as up:
            take(browser, up.dashboard_url, FRESH, given.out)
            with Person(up.dashboard_url) as person:
                with cluster(person) as api:
                    take(browser, up.dashboard_url, CLUSTER, given.out)
                    api.files = dict.fromkeys(api.files, WebFile(status=503))
                    wait(lambda: len(person.call("GET", "environments/eu/replicas")["trouble"]) == 1)
                    take(browser, up.dashboard_url, AWAY, given.out)
                empty(person)
            take(browser, up.dashboard_url, EMPTY, given.out)
        browser.close()


if __name__ == "__main__":
    main()
