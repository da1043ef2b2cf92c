"""`manage.py up` compiles the inference server's modules in the background; the next start of the server runs them."""

import fcntl
import os
import re
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil
import pytest

from repository.core.server_version import VERSION
from serving.compiled.loading import VARIABLE
from serving.compiled.modules import BUILDS
from tests.dashboard.supervisor.test_up import command_line
from tests.dashboard.web_process import migrate
from tests.serving.compiled.test_compiled_modules import can_compile, packages_with_one_compiled_module, run
from tests.support.serving_process import PATIENCE_S, ROOT, wait_until
from tests.support.up_process import Up

pytestmark = pytest.mark.long
BEHIND_S = 300.0  # for what gives way to everything else that the machine does
FAILED = "modules failed"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The two programs in a folder of their own, without example models, of which one small module is to be compiled."""
    return checkout_in(tmp_path / "checkout")


def checkout_in(folder: Path) -> Path:
    root = packages_with_one_compiled_module(folder, "dashboard", "templates", "static")
    shutil.copy(ROOT / "manage.py", root)
    return root


@pytest.fixture
def up(checkout: Path, tmp_path: Path) -> Iterator[Up]:
    migrate(tmp_path / "data")
    with Up(tmp_path / "data", root=checkout, **{VARIABLE: ""}) as running:
        yield running


@contextmanager
def another_build(checkout: Path) -> Iterator[None]:
    """Another run's build of the same checkout, which is done when the block ends."""
    lock = checkout / ".cache" / "compiled.lock"
    lock.parent.mkdir(exist_ok=True)
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield


def builds(up: Up) -> list[psutil.Process]:
    """The processes that compile."""
    return [psutil.Process(pid) for pid in up.processes() if "tools.compile_serving" in command_line(pid)]


def version(up: Up) -> str:
    try:
        return str(httpx.get(f"{up.http_url}/v2", timeout=PATIENCE_S).json()["version"])
    except httpx.HTTPError:
        return ""


class Page:
    """The server's page, as an administrator reads it."""

    def __init__(self, up: Up) -> None:
        self._url = up.dashboard_url
        with httpx.Client(base_url=self._url, follow_redirects=True, timeout=PATIENCE_S) as browser:
            token = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', browser.get("/sign-in").text)
            assert token is not None
            form = {"username": "admin", "password": up.password, "csrfmiddlewaretoken": token[1]}
            browser.post("/sign-in", data=form, headers={"Referer": f"{self._url}/sign-in"})
            self._cookies = browser.cookies

    def says(self, words: str) -> bool:
        page = httpx.get(f"{self._url}/servers/local/", cookies=self._cookies, timeout=PATIENCE_S).text
        return f"<span>{words}" in page


@can_compile
def test_the_modules_are_compiled_behind_everything_else_and_the_next_start_runs_them(
    up: Up, checkout: Path, tmp_path: Path
) -> None:
    # What gives way to everything else may take for ever on a busy machine: another run makes the build that both want.
    other = checkout_in(tmp_path / "other")
    run(other, "-m", "tools.compile_serving")
    with another_build(checkout):
        up.start()
        page = Page(up)
        (build,) = wait_until(lambda: builds(up), what="a build")
        wait_until(lambda: build.nice() == 19, BEHIND_S, "it gives way")
        assert version(up) == VERSION
        wait_until(
            lambda: page.says("runs interpreted; it is being compiled for its next start"), what="the page says so"
        )
        assert not (checkout / BUILDS).exists()
        shutil.copytree(other / BUILDS, checkout / BUILDS)
    wait_until(lambda: page.says("runs interpreted; it is compiled for its next start"), BEHIND_S, "it is compiled")
    assert version(up) == VERSION
    ((pid,),) = up.query("SELECT pid FROM dashboard_serverstate")
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: version(up) == f"{VERSION}+compiled", what="the next start runs it")
    wait_until(lambda: page.says("runs compiled"), what="the page says what runs")


@can_compile
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_build_under_way_ends_with_up_however_that_ends(up: Up, checkout: Path, number: int) -> None:
    with another_build(checkout):
        up.start()
        (build,) = wait_until(lambda: builds(up), what="a build")
        up.stop(number)
        wait_until(lambda: not build.is_running(), BEHIND_S, what="the build has ended")


def test_a_module_that_cannot_be_compiled_is_reported_once_and_disturbs_nothing(up: Up) -> None:
    up.environment["CC"] = "no-such-compiler"
    up.start()
    wait_until(lambda: FAILED in up.output, BEHIND_S, "it is told")
    page = Page(up)
    reason = "a C compiler or Python&#x27;s header files are missing"
    wait_until(lambda: page.says(f"runs interpreted, because compiling failed: {reason}"), what="the page says so")
    assert (version(up), up.output.count(FAILED), builds(up)) == (VERSION, 1, [])
    assert "sudo apt-get install gcc python3-dev" in (up.data / "logs" / "compile.log").read_text()


def test_where_compiled_modules_are_not_wanted_none_are_made(up: Up, checkout: Path) -> None:
    up.environment[VARIABLE] = "no"
    up.start()
    page = Page(up)
    wait_until(lambda: page.says("runs interpreted</span>"), what="the page says what runs")
    assert builds(up) == []
    assert not (checkout / ".cache").exists()
