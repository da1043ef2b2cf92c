"""Real artefacts go from the REST API to a right answer without a terminal: sent, converted by a job, published.

With CONVERSION_FIGURES=FILE, each artefact adds a line of JSON with its figures to that file: `make conversion-figures`.
"""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dashboard.conversions.check import Verdict, compare
from dashboard.conversions.conversion import LOCKS, Conversion
from dashboard.conversions.recipes.table import BY_NAME
from dashboard.environments.locks import read_lock
from dashboard.environments.making import environment
from tests.dashboard.conversions.artefacts import CONVERTED, ENVIRONMENTS, Artefact, has_environment
from tests.dashboard.conversions.test_conversions import ask, begin, run
from tests.e2e.browser.conftest import PASSWORD
from tests.support.ports import HOST
from tests.support.serving_process import START_TIMEOUT_S, wait_until
from tests.support.up_process import Up
from tools.screenshots import Person

pytestmark = [pytest.mark.conversions, pytest.mark.long]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("artefacts")


@pytest.fixture(scope="module")
def up(folder: Path) -> Iterator[Up]:
    """A Slipway to which the environments are lent that are there already."""
    lent = folder / "data" / "environments"
    lent.mkdir(parents=True)
    for name in sorted({recipe.environment for recipe in BY_NAME.values() if not recipe.needs_gpu}):
        if has_environment(name):
            with environment(read_lock(LOCKS / f"{name}.txt"), ENVIRONMENTS, lambda percent, step: None) as made:
                (lent / made.folder.name).symlink_to(made.folder.resolve())
    with Up(folder / "data", SLIPWAY_ADMIN_PASSWORD=PASSWORD) as running:
        yield running.start()


@pytest.fixture(scope="module")
def person(up: Up) -> Iterator[Person]:
    with Person(up.dashboard_url) as person:
        yield person


@pytest.mark.parametrize("artefact", CONVERTED, ids=lambda one: one.name)
def test_an_artefact_goes_from_the_rest_api_to_a_right_answer(
    artefact: Artefact, folder: Path, up: Up, person: Person
) -> None:
    conversion = begin(artefact, folder)
    run(conversion)  # for the answers of the source: those of the job are not kept
    began = time.monotonic()
    upload = convert(person, send(person, artefact.name, conversion), artefact)
    for part in person.call("GET", f"uploads/{upload}/conversions")["parts"]:
        publish(person, part, load=False)  # the ensemble loads its steps
    publish(person, upload, make_live=True)
    model = f"models/{artefact.name}"
    wait_until(
        lambda: person.call("GET", model)["state"] in ("ready", "failed"), START_TIMEOUT_S, f"{artefact.name} serves"
    )
    [lineage] = person.call("GET", f"{model}/versions/1")["details"]["lineage"]
    assert lineage["recipe"]["name"] == artefact.recipe
    report = conversion.report()
    server: Any = SimpleNamespace(grpc=f"{HOST}:{up.ports[2]}")
    served = ask(server, artefact.name, conversion.target, report)
    with np.load(conversion.target / "answers.npz") as own:
        verdict = compare({name: own[name] for name in served}, served, report)
    assert verdict.sentence == ""
    seconds = time.monotonic() - began
    person.call("POST", f"{model}/unload")
    if "CONVERSION_FIGURES" in os.environ:
        record(artefact, seconds, verdict)


def record(artefact: Artefact, seconds: float, verdict: Verdict) -> None:
    """Add the figures of an artefact to the file that CONVERSION_FIGURES names. The last line of an artefact counts."""
    figures = {"maximum": verdict.maximum, "agreement": verdict.agreement, "rows": verdict.rows}
    line = {"artefact": artefact.name, "recipe": artefact.recipe, "seconds": round(seconds, 1), **figures}
    with Path(os.environ["CONVERSION_FIGURES"]).open("a") as file:
        file.write(json.dumps(line) + "\n")


def send(person: Person, name: str, conversion: Conversion) -> str:
    """Send the files of a source, and wait until they have been inspected. Return the upload's id."""
    source = conversion.source
    files = [{"path": one, "size": (source.folder / one).stat().st_size} for one in source.names]
    upload = person.call("POST", "uploads", json={"model_name": name, "files": files})
    raw = {"Content-Type": "application/octet-stream"}
    for number, one in enumerate(source.names):
        content, most = (source.folder / one).read_bytes(), upload["chunk_bytes"]
        for at in range(0, len(content), most):
            address = f"uploads/{upload['id']}/files/{number}?offset={at}"
            person.call("PUT", address, content=content[at : at + most], headers=raw)
    person.call("POST", f"uploads/{upload['id']}/complete")
    settled(person, upload["id"])
    return str(upload["id"])


def convert(person: Person, upload: str, artefact: Artefact) -> str:
    asked = {"recipe": artefact.recipe, "options": artefact.options, "run_code": True, "unprotected": True}
    person.call("POST", f"uploads/{upload}/conversions", json=asked)
    found = settled(person, upload)
    conversions = person.call("GET", f"uploads/{upload}/conversions")
    assert (found["state"], conversions["error"]) == ("inspected", ""), found["error"] or conversions["error"]
    return upload


def publish(person: Person, upload: str, **asked: Any) -> None:
    assert settled(person, upload)["state"] == "inspected"
    person.call("POST", f"uploads/{upload}/publish", json=asked)
    wait_until(
        lambda: person.call("GET", f"uploads/{upload}")["state"] == "published", START_TIMEOUT_S, "the publication"
    )


def settled(person: Person, upload: str) -> dict[str, Any]:
    """Wait until no job works on an upload, and return it."""
    found: dict[str, Any] = wait_until(
        lambda: (one := person.call("GET", f"uploads/{upload}"))["state"] in ("inspected", "failed") and one,
        START_TIMEOUT_S,
        "the job",
    )
    return found
