"""Importing archives of TorchServe in the browser: chosen together with their properties, taken over by one job."""

from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.support.torchserve_archives import archive

pytestmark = pytest.mark.browser


def test_archives_are_sent_and_their_job_tells_what_came_of_each(page: Page, tmp_path: Path) -> None:
    good, bad = archive(tmp_path / "moved.mar"), tmp_path / "broken.mar"
    bad.write_bytes(b"no archive")
    properties = tmp_path / "config.properties"
    properties.write_text('models={"moved": {"1.0": {"batchSize": 3, "marName": "moved.mar"}}}\nvmargs=-Xmx4g\n')
    page.goto("/models/")
    page.get_by_role("link", name="Import a model store").click()
    expect(page.get_by_text("No folder may be imported")).to_be_visible()

    page.locator("#file-input").set_input_files(properties)
    expect(page.get_by_role("alert")).to_contain_text("There is no archive (.mar, .tar.gz, .war) among the files.")
    page.locator("#file-input").set_input_files([good, bad, properties])
    page.wait_for_url("**/jobs/*/")
    report = page.get_by_role("region", name="Report")
    expect(report.get_by_role("row", name="moved.mar")).to_contain_text("Batches of 3")
    expect(report.get_by_role("row", name="broken.mar")).to_contain_text("Not taken")
    expect(page.get_by_role("button", name="Go on with the import")).to_be_visible()
    report.get_by_role("link", name="moved").click()
    expect(page.get_by_role("heading", name="moved", exact=True)).to_be_visible()
