"""docs/security.md says who may do what: its table holds every route that changes something, under the right that it takes."""

import re
from pathlib import Path
from typing import Any

import pytest
from django.test import Client

from dashboard.access.authorisation import Right
from dashboard.routing import websocket_urlpatterns
from repository.files.code_execution import DATA_BACKENDS, code_in
from tests.dashboard.web.test_routes import API, OPEN, PAGES

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "security.md").read_text()
WORDS = {right: right.name.lower().replace("_", " ") for right in Right} | {Right.VIEW: "see"}
# Shown to everybody and changed by some: what it says of POST is tried below.
BOTH = {"/models/<name>/configuration": Right.OPERATE}


def section(title: str) -> str:
    return PAGE.partition(f"## {title}\n")[2].partition("\n## ")[0]


def table(column: int) -> dict[str, str]:
    """What stands in backquotes in a column -> the right of its row."""
    rows = [line.split("|")[1:-1] for line in section("Who may do what").splitlines() if line.startswith("| ")][2:]
    found: dict[str, str] = {}
    for cells in rows:
        for entry in re.findall(r"`([^`]+)`", cells[column]):
            if not cells[column].lstrip().startswith("every"):
                assert entry not in found, f"{entry} stands there twice"
                found[entry] = cells[1].strip()
    return found


def is_of_a_form(client: Client, path: str) -> bool:
    """Whether an address shows nothing: GET is refused, or goes on to the page that the form is on."""
    return client.get(path).status_code in (302, 405) and "POST" in client.put(path)["Allow"]


def address(pattern: Any, prefix: str = "") -> str:
    return "/" + re.sub(r"<(?:\w+:)?(\w+)>", r"<\1>", prefix + str(pattern.pattern))


def test_every_rest_route_that_changes_something_is_in_the_table() -> None:
    expected = {
        f"{method} {address(pattern)}": WORDS[right]
        for path, pattern in API
        if hasattr(pattern.callback, "view_class")
        for method, right in getattr(pattern.callback.view_class, "rights", {}).items()
        if (method, right) != ("GET", Right.VIEW)
    }
    assert table(3) == expected


@pytest.mark.django_db
def test_every_page_that_changes_something_is_in_the_table(as_person: Any) -> None:
    root = as_person(is_superuser=True)
    expected = {path: WORDS[right] for path, right in BOTH.items()}
    for path, pattern in PAGES:
        right = getattr(pattern.callback, "right", None)
        assert right is not None or pattern.name in OPEN, path
        if right is not None and (right is not Right.VIEW or is_of_a_form(root, path)):
            expected[address(pattern)] = WORDS[right]
    assert table(2) == expected


@pytest.mark.django_db
def test_a_page_that_all_may_see_and_some_may_change_asks_for_the_right(relu: Any, as_person: Any) -> None:
    for path, right in BOTH.items():
        assert right is Right.OPERATE
        viewer: Client = as_person()
        sample = path.replace("<name>", "relu")
        assert (viewer.get(sample).status_code, viewer.post(sample, {"text": "x"}).status_code) == (200, 403)


def test_every_websocket_takes_the_right_to_see() -> None:
    consumers = [pattern.callback.consumer_class for pattern in websocket_urlpatterns]
    assert {consumer.right for consumer in consumers if hasattr(consumer, "right")} == {Right.VIEW}


def test_what_the_page_calls_code_and_data_is_taken_for_that() -> None:
    code = section("What is trusted")
    ends = re.findall(r"`(\.\w+)`", code)
    assert len(ends) > 15
    assert all(code_in(f"model{end}") for end in ends)
    assert all(f"`{backend}`" in code for backend in DATA_BACKENDS)
