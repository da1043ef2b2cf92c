"""Releases in a browser, with everything running: what is wanted, what serves, and how to get back are one truth.

What two people edit at once, golden requests in the playground, and the lines of two live versions on the charts have files of
their own (test_browser_configuration, test_browser_examples, test_browser_operations).
"""

import re
from pathlib import Path

import httpx
import numpy as np
import pytest
from playwright.sync_api import expect

from repository.config.document import Document
from tests.e2e.browser.house import House
from tests.e2e.clients.tritonclient_adapter import TritonClient
from tests.support import model_factory
from tests.support.ports import HOST
from tests.support.serving_process import PATIENCE_S, wait_until

pytestmark = [pytest.mark.browser, pytest.mark.long]

DELAYED = "dynamic_batching { max_queue_delay_microseconds: 9 }\n"
CONFIG = """backend: "onnxruntime"
max_batch_size: 8
input [ { name: "x" data_type: TYPE_FP32 dims: [ 3 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 3 ] } ]
"""
PYTHON_CONFIG = CONFIG.replace("onnxruntime", "python")
SLOW = """import pathlib
import time

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        while not pathlib.Path({gate!r}).exists():
            time.sleep(0.05)

    def execute(self, requests):
        tensors = [pb_utils.get_input_tensor_by_name(request, "x").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", tensor * 3)]) for tensor in tensors]
"""
BROKEN = """class TritonPythonModel:
    def initialize(self, args):
        raise RuntimeError("the weights file is missing")

    def execute(self, requests):
        return []
"""


def scaled(factor: float, output: str = "y") -> bytes:
    """x[n, 3] -> x * factor."""
    node = model_factory.helper.make_node("Mul", ["x", "factor"], [output])
    tensors = [("x", "FP32", ["n", 3])], [(output, "FP32", ["n", 3])]
    return model_factory.onnx_bytes([node], *tensors, {"factor": model_factory.np.array(factor, "float32")})


SERVER, WATCH, DASHBOARD = ("-m", "serving"), ("manage.py", "watch"), ("-m", "daphne")


@pytest.fixture(scope="module")
def twice(house: House) -> str:
    """Version 1 gives x, version 2 gives 2 x and serves: releases 1 and 2."""
    house.publish("twice", scaled(1), CONFIG)
    house.serves("twice", 1)
    house.publish("twice", scaled(2))
    house.serves("twice", 2)
    return "twice"


@pytest.fixture(scope="module")
def half(house: House) -> str:
    """A model that the tests of this file leave as it is."""
    return half_live(house, "half")


def half_live(house: House, name: str) -> str:
    """Version 1 serves, release 1. Release 2 is wanted and failed: its version is of another backend, and does not start."""
    house.publish(name, scaled(0.5), CONFIG)
    house.serves(name, 1)
    house.publish(name, BROKEN, PYTHON_CONFIG, path="model.py")
    house.fails(name)
    return name


# -- sentences follow what serves ---------------------------------------------------------------------------------------------
def test_what_serves_and_what_is_wanted_is_told_without_a_reload(house: House) -> None:
    page, half = house.page, half_live(house, "told")
    page.goto(f"/models/{half}/configuration")
    said = page.get_by_text("Release 1 serves, release 2 is wanted.")
    expect(said).to_be_visible()
    expect(page.locator(".list .tag.live")).to_have_count(1)
    page.evaluate("window.notReloaded = true")
    house.person.call("POST", f"models/{half}/releases/1/go_back")
    house.serves(half, 3)
    expect(said).to_have_count(0)
    expect(page.locator(".list li").first).to_contain_text("live")
    assert page.evaluate("window.notReloaded")


# -- what is only published serves nobody -----------------------------------------------------------------------------------
def test_only_publish_then_make_it_live_then_the_way_back(house: House) -> None:
    page = house.page
    house.publish("quiet", scaled(1), CONFIG)
    house.serves("quiet", 1)

    def served() -> list[list[str]]:
        rows = house.person.call("GET", "models/quiet/releases")["results"]
        return [[span["started_at"] for span in row["spans"]] for row in rows]

    since = served()
    house.publish("quiet", scaled(2), make_live=False, load=False)
    wait_until(lambda: 2 in house.reported("quiet"), what="the server has read the text")
    page.goto("/models/quiet/releases/")
    rows = page.locator(".releases > li")
    expect(rows).to_have_count(1)
    expect(rows.first).to_contain_text("Live")
    expect(rows.first).to_contain_text("Published version 2")
    expect(page.get_by_text("Way back")).to_have_count(0)
    expect(page.get_by_role("button", name="Go back")).to_have_count(0)
    assert (house.model("quiet")["serving_release"], served()) == (1, since)
    assert house.ask("quiet") == [1, 2, 3]

    page.goto("/models/quiet/versions")
    page.locator("#version-2").get_by_role("link", name="Make live").click()
    page.get_by_role("button", name="Make version 2 live").click()
    house.answers("quiet", [2, 4, 6])
    page.goto("/models/quiet/releases/")
    expect(rows).to_have_count(2)
    expect(page.locator(".standing")).to_contain_text("Way back")
    page.get_by_role("button", name="Go back to release 1").click()
    page.get_by_role("dialog").get_by_role("button", name="Go back to release 1").click()
    house.answers("quiet", [1, 2, 3])
    expect(rows).to_have_count(3)


# -- a release is one record; its life is told by the server --------------------------------------------------------------
def test_publishing_editing_promoting_and_going_back_each_make_a_release(house: House) -> None:
    page = house.page
    house.publish("record", scaled(1), CONFIG)
    house.serves("record", 1)
    house.publish("record", scaled(2))
    house.serves("record", 2)

    page.goto("/models/record/configuration")
    page.get_by_label("Largest batch").fill("16")
    page.get_by_role("button", name="Review changes").click()
    page.get_by_label("What is this change for?").fill("larger batches")
    page.get_by_role("button", name="Apply").click()
    house.serves("record", 3)

    page.goto("/models/record/versions")
    page.locator("#version-1").get_by_role("link", name="Make live").click()
    page.get_by_role("button", name="Make version 1 live").click()
    house.serves("record", 4)
    assert house.ask("record") == [1, 2, 3]

    page.goto("/models/record/releases/2/")
    page.get_by_role("button", name="Go back to release 2").click()
    house.serves("record", 5)

    page.goto("/models/record/releases/")
    rows = page.locator(".releases > li")
    expect(rows).to_have_count(5)
    for row, said in zip(range(5), ("Went back to", "Made version 1", "larger", "Published", "Published"), strict=True):
        expect(rows.nth(row)).to_contain_text(said)
        expect(rows.nth(row)).to_contain_text("admin")
    expect(rows.nth(0)).to_contain_text("Live")
    expect(rows.nth(0)).to_contain_text("Serving since")
    expect(rows.nth(4)).to_contain_text("Served until")

    page.goto("/models/record/releases/2/")
    facts = page.locator(".facts").first
    expect(facts).to_contain_text(re.compile(r"Versions\s*2"))
    expect(facts).to_contain_text(re.compile(r"Wanted.* by admin"))
    expect(facts).to_contain_text(re.compile(r"from .* to "))
    expect(page.get_by_role("list", name="Its last check")).to_contain_text("Load")


# -- going back always works --------------------------------------------------------------------------------------------
def test_going_back_restores_versions_and_configuration_together_and_shows_the_difference_before(
    house: House, twice: str
) -> None:
    page = house.page
    text = house.person.call("GET", f"models/{twice}/config")["text"]
    house.publish(twice, scaled(3), text.replace("max_batch_size: 8", "max_batch_size: 2"))
    house.serves(twice, 3)
    changed = house.person.call("GET", f"models/{twice}/config")["text"]
    house.person.call("PUT", f"models/{twice}/config", json={"text": changed + DELAYED})
    house.serves(twice, 4)

    page.goto(f"/models/{twice}/")
    page.get_by_role("link", name="Go back to release").click()
    page.goto(f"/models/{twice}/releases/2/")
    shown = page.locator("#back")
    expect(shown).to_contain_text("from 3 to 2")
    expect(shown.locator(".diff .del").filter(has_text="max_batch_size: 2")).to_have_count(1)
    expect(shown.locator(".diff .add").filter(has_text="max_batch_size: 8")).to_have_count(1)
    expect(shown.locator(".diff .del").filter(has_text="max_queue_delay_microseconds: 9")).to_have_count(1)
    shown.get_by_role("button", name="Go back to release 2").click()
    house.serves(twice, 5)
    assert house.ask(twice) == [2, 4, 6]
    served = httpx.get(f"{house.up.http_url}/v2/models/{twice}/config", timeout=PATIENCE_S, trust_env=False).json()
    assert served["max_batch_size"] == 8
    expect(page.locator("#model-head")).to_contain_text("Version 2 live")


def test_a_release_that_was_never_live_does_not_become_live_by_going_back(house: House) -> None:
    page = house.page
    house.publish("never", scaled(1), CONFIG)
    house.serves("never", 1)
    house.publish("never", BROKEN, PYTHON_CONFIG, path="model.py")
    house.fails("never")
    page.goto("/models/never/")
    page.get_by_role("link", name="Go back to release 1").click()
    page.get_by_role("button", name="Go back to release 1").click()
    house.serves("never", 3)
    page.goto("/models/never/releases/2/")
    expect(page.locator("#back")).to_contain_text("It was never live")
    expect(page.get_by_role("button", name="Go back to release 2")).to_have_count(0)
    page.goto("/models/never/releases/")
    expect(page.locator("#release-2")).to_contain_text("The weights file is missing", ignore_case=True)


def test_a_version_that_serves_is_wanted_or_is_the_way_back_cannot_be_archived(house: House, half: str) -> None:
    page = house.page
    page.goto(f"/models/{half}/versions")
    expect(page.locator("#version-1")).to_contain_text("Version 1 of 'half' is live; make another one live first.")
    expect(page.locator("#version-2")).to_contain_text("Version 2 of 'half' is wanted by release 2")
    house.publish("kept", scaled(1), CONFIG)
    house.serves("kept", 1)
    house.publish("kept", scaled(2))
    house.serves("kept", 2)
    page.goto("/models/kept/versions")
    expect(page.locator("#version-1")).to_contain_text("is needed to go back to release 1")
    expect(page.get_by_role("button", name="Archive")).to_have_count(0)
    headers = {"X-CSRFToken": house.person.http.cookies["slipway_csrf"]}
    for number in (1, 2):
        refused = house.person.http.post(f"/api/v1/models/kept/versions/{number}/archive", headers=headers)
        assert refused.status_code == 409, refused.text


# -- the server itself reports which release serves ---------------------------------------------------------------------
def test_the_release_that_the_page_calls_live_is_the_one_that_the_server_reports(house: House, half: str) -> None:
    page = house.page
    page.goto(f"/models/{half}/releases/")
    standing = page.get_by_role("region", name="What serves")
    expect(standing).to_contain_text(re.compile(r"Live now\s*version 1\s*Release 1"))
    expect(standing).to_contain_text(re.compile(r"Wanted\s*version 2\s*Release 2.*failed", re.DOTALL))
    assert house.reported(half) == {1}
    stats = httpx.get(f"{house.up.http_url}/v2/models/{half}/stats", timeout=PATIENCE_S, trust_env=False).json()
    assert [row["release"] for row in stats["model_stats"]] == [1]
    on_disk = (house.up.data / "models" / half / "config.pbtxt").read_text()
    assert on_disk == Document.read(Document.read(on_disk).text).stamped(2)
    assert 'backend: "python"' in on_disk


# -- each version keeps the configuration that fits it --------------------------------------------------------------------
def test_making_another_signature_live_shows_what_changes_for_clients_and_offers_what_fits(house: House) -> None:
    page = house.page
    house.publish("shape", scaled(1), CONFIG)
    house.serves("shape", 1)
    house.publish("shape", scaled(2, output="z"), make_live=False, load=False)
    page.goto("/models/shape/versions")
    page.locator("#version-2").get_by_role("link", name="Make live").click()
    expect(page.locator("#main")).to_contain_text("Output 'y' is gone: requests that ask for it are refused.")
    fitting = page.get_by_role("radio", name="With the configuration that fits this version")
    expect(fitting).to_be_checked()
    expect(page.get_by_role("radio", name="With the present configuration")).to_be_disabled()
    expect(page.locator("#main")).to_contain_text("It cannot serve this version:")
    assert house.ask("shape") == [1, 2, 3]
    page.get_by_role("button", name="Make version 2 live").click()
    wait_until(lambda: house.model("shape")["live_versions"] == [2], what="version 2 is live")
    assert house.ask("shape") == [2, 4, 6]
    page.goto("/models/shape/")
    expect(page.locator(".signature")).to_contain_text("z")
    expect(page.locator(".signature")).not_to_contain_text(re.compile(r"\by\b"))


# -- checks before the switch -------------------------------------------------------------------------------------------
def test_checks_are_shown_live_and_the_first_that_fails_leaves_the_old_release_untouched(
    house: House, tmp_path: Path
) -> None:
    page, gate = house.page, tmp_path / "gate"
    house.publish("checked", scaled(1), CONFIG)
    house.serves("checked", 1)
    asked = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 3], "data": [1, 2, 3]}]}
    expected = {"outputs": [{"name": "y", "datatype": "FP32", "shape": [1, 3], "data": [1, 2, 3]}]}
    golden = {"name": "unchanged", "request": asked, "expected": expected, "golden": True}
    house.person.call("POST", "models/checked/examples", json=golden)

    page.goto("/models/checked/releases/")
    house.publish("checked", SLOW.format(gate=str(gate)), PYTHON_CONFIG, path="model.py")
    steps = page.get_by_role("list", name="Checks before the switch")
    expect(steps.locator('[aria-current="step"]')).to_contain_text("Load")
    expect(steps.locator("li")).to_have_text([re.compile(name) for name in STEPS])
    assert house.ask("checked") == [1, 2, 3]
    gate.touch()
    result = page.get_by_role("row", name=re.compile("unchanged"))
    expect(result).to_contain_text("Failed")
    expect(result).to_contain_text("Output 'y' is 9 at [0, 2], expected 3")
    expect(page.get_by_role("region", name="What serves")).to_contain_text(re.compile(r"Live now\s*version 1"))
    expect(steps).not_to_contain_text("Switch")
    expect(page.locator("#model-head")).to_contain_text("Release 2 failed")
    assert house.ask("checked") == [1, 2, 3]
    assert house.reported("checked") == {1}


STEPS = ("Configuration", "Memory", "Load", "Warm up", "Golden requests", "Switch", "Drain")


# -- aliases ------------------------------------------------------------------------------------------------------------
def test_an_alias_moved_in_the_browser_is_called_over_http_and_grpc(house: House) -> None:
    page, grpc = house.page, f"{HOST}:{house.up.ports[2]}"
    house.publish("named", scaled(1), CONFIG)
    house.serves("named", 1)
    house.publish("named", scaled(2))
    house.serves("named", 2)
    x = np.array([[1, 2, 3]], dtype=np.float32)
    for release, number, expected in ((3, "1", [1, 2, 3]), (4, "2", [2, 4, 6])):
        page.goto("/models/named/versions")
        form = page.locator("#aliases")
        row = form.locator(".alias-row").first
        row.get_by_label(re.compile("alias", re.IGNORECASE)).fill("champion")
        row.get_by_label("Version").select_option(number)
        form.get_by_role("button", name="Save aliases").click()
        house.serves("named", release)
        for kind, url in (("http", f"{HOST}:{house.up.ports[1]}"), ("grpc", grpc)):
            client = TritonClient(kind, url)
            try:
                result = client.infer("named", {"x": x}, model_version="champion")
            finally:
                client.close()
            assert result.outputs["y"].tolist() == [expected], kind
        expect(page.locator(f"#version-{number}")).to_contain_text("champion")
    assert house.ask("named") == [2, 4, 6]  # no version named: what answered before does so still

    house.person.call("PUT", "models/named/aliases", json={"aliases": {"champion": 2, "default": 1}})
    house.serves("named", 5)
    assert house.ask("named") == [1, 2, 3]
    page.reload()
    expect(page.locator("#version-1")).to_contain_text("default")
    expect(page.locator("#version-2 .tag").filter(has_text="default")).to_have_count(0)


# -- compare ------------------------------------------------------------------------------------------------------------
def test_two_versions_are_compared_side_by_side_and_asked_the_same(house: House) -> None:
    page = house.page
    house.publish("pair", scaled(1), CONFIG)
    house.serves("pair", 1)
    house.publish("pair", scaled(2))
    house.serves("pair", 2)
    house.person.call("PUT", "models/pair/aliases", json={"aliases": {"before": 1}})
    house.serves("pair", 3)
    for version in ("1", "1", "1", "2"):
        house.ask("pair", version)
    page.goto("/models/pair/compare?a=r1&b=r2")
    page.get_by_label("Left").select_option("Version 1")
    page.wait_for_url(re.compile(r"a=v1"))
    page.get_by_label("Right").select_option("Version 2")
    page.wait_for_url(re.compile(r"a=v1&b=v2"))
    differing = page.locator(".compare .differs > th")
    expect(differing.filter(has_text="SHA-256")).to_have_count(1)
    requests = page.get_by_role("row", name=re.compile("^Requests"))

    def counted() -> bool:
        page.reload()
        return requests.locator("td").all_inner_texts() == ["3", "1"]

    wait_until(counted, what="the requests of each version are counted")
    page.get_by_role("link", name="Ask versions 1 and 2").click()
    for column in range(3):
        page.get_by_label(f"x {column}", exact=True).fill("1")
    page.get_by_role("button", name="Send request").click()
    expect(page.locator('[data-difference="y"]')).to_contain_text("3 of 3")


# -- retention ----------------------------------------------------------------------------------------------------------
def test_retention_archives_old_versions_but_never_what_is_needed(house: House) -> None:
    page = house.page
    for number in (1, 2, 3, 4):
        house.publish("many", scaled(number), CONFIG if number == 1 else None)
        house.serves("many", number)
    house.up.query(
        "UPDATE dashboard_version SET created_at = datetime('now', '-3 days') WHERE model_id ="
        " (SELECT id FROM dashboard_model WHERE name = 'many')"
    )
    page.goto("/models/many/versions")
    page.get_by_label("Keep the newest").fill("one")
    page.get_by_role("button", name="Save retention").click()
    expect(page.get_by_role("alert")).to_contain_text("'one' is not a whole number")
    page.get_by_label("Keep the newest").fill("1")
    page.get_by_role("button", name="Save retention").click()
    expect(page.locator("#retention")).to_contain_text("Next to be archived: versions 1, 2.")
    page.locator("#version-4 [data-copy-text]").hover()  # a pointer that rests does not keep the page as it is
    house.kill(*WATCH)  # it looks after retention when it starts, then every few minutes
    for number in (1, 2):
        expect(page.locator(f"#version-{number}")).to_have_class(re.compile("archived"))
    expect(page.locator("#version-3")).to_contain_text("is needed to go back to release")
    expect(page.locator("#version-4")).to_contain_text("is live")
    page.goto("/models/many/releases/1/")
    expect(page.locator("#back")).to_contain_text("Version 1 is archived; restore it first")
    expect(page.get_by_role("button", name="Go back to release 1")).to_have_count(0)
    page.goto("/models/many/versions")
    page.locator("#version-1").get_by_role("button", name="Restore").click()
    expect(page.locator("#version-1")).not_to_have_class(re.compile("archived"))


# -- after any restart of any process, in any order: last, for these take the house down ------------------------------------
@pytest.mark.parametrize("process", [SERVER, WATCH, DASHBOARD], ids=["server", "watch", "dashboard"])
def test_after_a_kill_the_last_good_release_serves_while_the_wanted_one_failed(
    house: House, half: str, process: tuple[str, ...]
) -> None:
    house.kill(*process)
    says_both(house, half)
    tried = f"""SELECT checked.started_at FROM dashboard_releasecheck checked
        JOIN dashboard_release release ON release.id = checked.release_id
        JOIN dashboard_model model ON model.id = release.model_id
        WHERE checked.state = 'failed' AND model.name = '{half}'"""
    before = house.up.query(tried)
    house.page.get_by_role("button", name="Try again").click()
    wait_until(lambda: house.up.query(tried) not in ([], before), what="the wanted release was tried again")
    says_both(house, half)


def test_after_a_restart_of_everything_the_last_good_release_serves(house: House, half: str) -> None:
    house.up.stop()
    house.up.start()
    says_both(house, half)


def says_both(house: House, name: str) -> None:
    """Version 1 answers, and the page says which release serves and which was wanted and failed."""
    house.answers(name, [0.5, 1, 1.5])
    wait_until(lambda: house.reported(name) == {1}, what="the server reports the release")

    def shown() -> bool:
        try:
            house.fails(name)
            house.serves(name, 1)
        except httpx.HTTPError:
            return False
        return True

    wait_until(shown, what="the dashboard answers")
    page = house.page
    page.goto(f"/models/{name}/releases/")
    standing = page.get_by_role("region", name="What serves")
    expect(standing).to_contain_text(re.compile(r"Live now\s*version 1\s*Release 1"))
    expect(standing).to_contain_text(re.compile(r"Wanted\s*version 2\s*Release 2.*failed", re.DOTALL))
    expect(page.locator("#model-head")).to_contain_text("Release 2 failed")
    expect(page.locator("#model-head")).to_contain_text("Release 1 keeps serving, with version 1")
