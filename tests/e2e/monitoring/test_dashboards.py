"""The dashboards of deploy/grafana are complete and portable. Grafana itself does not run here."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.monitoring.tools import DASHBOARDS

SOURCE = {"type": "prometheus", "uid": "${datasource}"}
KINDS = {"row", "stat", "timeseries", "heatmap", "table"}


def board(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def panels(path: Path) -> list[dict[str, Any]]:
    return [panel for panel in board(path)["panels"] if panel["type"] != "row"]


each_board = pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)


@each_board
def test_a_dashboard_has_what_grafana_asks_for(path: Path) -> None:
    found = board(path)
    assert found["id"] is None, "Grafana gives the id"
    assert found["uid"] == f"slipway-{path.stem}"
    assert found["schemaVersion"] == 38
    assert all(isinstance(found[name], kind) for name, kind in (("title", str), ("panels", list), ("tags", list)))
    ids = [panel["id"] for panel in found["panels"]]
    assert len(set(ids)) == len(ids)
    titles = [panel["title"] for panel in found["panels"]]
    assert len(set(titles)) == len(titles)
    assert {panel["type"] for panel in found["panels"]} <= KINDS


@each_board
def test_a_dashboard_takes_its_data_source_from_a_variable_and_names_no_host(path: Path) -> None:
    found = board(path)
    variables = found["templating"]["list"]
    assert (variables[0]["name"], variables[0]["type"], variables[0]["query"]) == (
        "datasource",
        "datasource",
        "prometheus",
    )
    assert all(variable["datasource"] == SOURCE for variable in variables[1:])
    for panel in panels(path):
        assert panel["datasource"] == SOURCE
        assert all(target["datasource"] == SOURCE for target in panel["targets"])
    assert not re.search(r"https?://|localhost|\d+\.\d+\.\d+\.\d+", path.read_text())


@each_board
def test_a_panel_has_queries_a_description_and_only_variables_that_exist(path: Path) -> None:
    known = {variable["name"] for variable in board(path)["templating"]["list"]} | {"__rate_interval"}
    for panel in panels(path):
        assert panel["description"].endswith("."), panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"]
        references = [target["refId"] for target in panel["targets"]]
        assert references
        assert len(set(references)) == len(references)
        for target in panel["targets"]:
            assert set(re.findall(r"\$\{?(\w+)", target["expr"])) <= known


@each_board
def test_panels_do_not_overlap_and_fit_the_width(path: Path) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in board(path)["panels"]:
        at = panel["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells


def test_links_between_dashboards_go_by_their_tag() -> None:
    for path in DASHBOARDS:
        found = board(path)
        assert [link["tags"] for link in found["links"]] == [["slipway"]]
        assert found["tags"] == ["slipway"]
