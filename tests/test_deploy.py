"""What deploy/ holds is told in the docs, and has no secret."""

import re

import pytest

from tests.support.serving_process import ROOT

DEPLOY = ROOT / "deploy"


def test_no_secret_is_written_down() -> None:
    text = "".join(path.read_text() for path in DEPLOY.rglob("*") if path.is_file())
    assert not re.search(r"AKIA|BEGIN [A-Z ]*PRIVATE KEY|SECRET_ACCESS_KEY: *\S", text)


@pytest.mark.parametrize("name", ["Dockerfile", "haproxy.cfg", "kserve", "kubernetes"])
def test_the_pages_name_what_deploy_holds(name: str) -> None:
    assert f"deploy/{name}" in (ROOT / "docs" / "configuration.md").read_text()
