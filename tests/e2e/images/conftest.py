"""Everything here needs the images of `make images`, and root, runc and buildah to run them."""

import os
import shutil

import pytest

from tests.e2e.images.pods import configuration


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/e2e/images/" in item.path.as_posix():
            item.add_marker(pytest.mark.images)


@pytest.fixture(scope="session", autouse=True)
def images() -> None:
    """Fail, and do not skip: who asks for these tests wants them to run."""
    missing = [program for program in ("runc", "buildah", "ip") if shutil.which(program) is None]
    assert not missing, f"install {', '.join(missing)}"
    assert os.geteuid() == 0, "containers of these tests are started by root"
    for image in ("slipway-server", "slipway-dashboard"):
        configuration(image)
