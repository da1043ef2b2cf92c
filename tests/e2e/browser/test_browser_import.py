"""Importing archives of TorchServe in the browser: chosen together with their properties, taken over by one job."""

from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.support.serving_process import PATIENCE_S
from tests.support.torchserve_archives import archive

pytestmark = pytest.mark.browser
FAILS = """
def handle(data, context):
    raise ValueError("the weights are of another age")
"""


def test_archives_are_sent_and_their_job_tells_what_came_of_each(page: Page, tmp_path: Path) -> None:
    good, bad = archive(tmp_path / "moved.mar"), tmp_path / "broken.mar"
    bad.write_bytes(b"no archive")
    unloadable = archive(tmp_path / "unloadable.mar", handler=FAILS)
    properties = tmp_path / "config.properties"
    properties.write_text('models={"moved": {"1.0": {"batchSize": 3, "marName": "moved.mar"}}}\nvmargs=-Xmx4g\n')
    page.goto("/models/")
    page.get_by_role("link", name="Import a model store").click()
    expect(page.get_by_text("No folder may be imported")).to_be_visible()

    page.locator("#file-input").set_input_files(properties)
    expect(page.get_by_role("alert")).to_contain_text("There is no archive (.mar, .tar.gz, .war) among the files.")
    page.locator("#file-input").set_input_files([good, bad, unloadable, properties])
    page.wait_for_url("**/jobs/*/")
    report = page.get_by_role("region", name="Report")
    expect(report.get_by_role("row", name="moved.mar")).to_contain_text("Batches of 3")
    expect(report.get_by_role("row", name="broken.mar")).to_contain_text("Not taken")
    expect(report.get_by_role("row", name="moved.mar")).to_contain_text("Taken, serves", timeout=PATIENCE_S * 1000)
    expect(report.get_by_role("row", name="unloadable.mar")).to_contain_text("Did not load")
    expect(report.get_by_role("row", name="unloadable.mar")).to_contain_text("the weights are of another age")
    expect(page.locator("h1 + .state")).to_have_text("Failed")
    expect(page.get_by_role("button", name="Go on with the import")).to_be_visible()
    report.get_by_role("link", name="moved").click()
    expect(page.get_by_role("heading", name="moved", exact=True)).to_be_visible()
    page.goto("/")
    lines = page.get_by_role("region", name="Last changes").get_by_text("from TorchServe")
    expect(lines).to_have_count(1)
    expect(lines).to_have_text("Imported 2 models from TorchServe: moved, unloadable")
