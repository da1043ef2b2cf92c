"""An environment is made from its lock once, whole or not at all; wheels lie in a folder, so that no test needs a network."""

import base64
import hashlib
import importlib.metadata
import os
import signal
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import psutil
import pytest

from dashboard.environments.locks import Lock, read_lock
from dashboard.environments.making import WHOLE, environment, is_ready, sentence_of
from dashboard.environments.removal import remove_unused
from dashboard.shared.exceptions import DashboardError, StorageFull, Unavailable
from tests.support.serving_process import ROOT, wait_until


class Cancelled(Exception):
    """Raised by a callback, as a cancelled job does."""


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of wheels, which is all that pip sees."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def wheel(folder: Path, name: str, version: str = "1.0", tag: str = "py3-none-any") -> str:
    """Write a wheel with one module; return its line for a lock."""
    inner = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": f"VERSION = {version!r}\n",
        f"{inner}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{inner}/WHEEL": f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: {tag}\n",
    }
    rows = []
    path = folder / f"{name}-{version}-{tag}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in files.items():
            archive.writestr(file, text)
            digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")
            rows.append(f"{file},sha256={digest},{len(text)}")
        archive.writestr(f"{inner}/RECORD", "\n".join([*rows, f"{inner}/RECORD,,"]) + "\n")
    return f"{name}=={version} \\\n    --hash=sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}"


def lock(folder: Path, *lines: str, name: str = "tools", asked: str = "") -> Lock:
    (folder / f"{name}.txt").write_text("# made by hand\n" + "\n".join(lines) + "\n")
    (folder / f"{name}.in").write_text(asked)
    return read_lock(folder / f"{name}.txt")


def answer(python: Path, code: str) -> str:
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def quiet(percent: float, step: str) -> None:
    """Take the progress, and say nothing."""


def test_an_environment_has_the_packages_of_its_lock_and_tells_how_far_it_is(wheels: Path, tmp_path: Path) -> None:
    wanted = lock(tmp_path, wheel(wheels, "alpha"), wheel(wheels, "beta", "2.1"))
    said: list[tuple[float, str]] = []
    with environment(wanted, tmp_path / "all", lambda *told: said.append(told)) as made:
        assert answer(made.python, "import alpha, beta; print(alpha.VERSION, beta.VERSION)") == "1.0 2.1"
    assert "Fetching beta (2 of 2)." in [step for _, step in said]
    assert [percent for percent, _ in said] == sorted(percent for percent, _ in said)
    assert said[-1][0] == 100


def test_an_environment_that_is_there_is_not_made_again(wheels: Path, tmp_path: Path) -> None:
    wanted = lock(tmp_path, wheel(wheels, "alpha"))
    with environment(wanted, tmp_path / "all", quiet):
        pass
    next(wheels.iterdir()).unlink()
    said: list[str] = []
    with environment(wanted, tmp_path / "all", lambda _, step: said.append(step)):
        assert said == ["The environment 'tools' is ready."]


def test_a_package_that_the_product_has_in_the_same_version_is_borrowed(wheels: Path, tmp_path: Path) -> None:
    version = importlib.metadata.version("numpy")
    wanted = lock(tmp_path, f"numpy=={version} \\\n    --hash=sha256:00", wheel(wheels, "alpha"))
    with environment(wanted, tmp_path / "all", quiet) as made:
        assert answer(made.python, "import alpha, numpy; print(numpy.__version__)") == version
        assert not list(made.folder.glob("lib/python*/site-packages/numpy*"))


def test_a_package_in_another_version_goes_before_the_products(wheels: Path, tmp_path: Path) -> None:
    version = importlib.metadata.version("numpy")
    wanted = lock(tmp_path, wheel(wheels, "asgiref", "99.0"), f"numpy=={version}")
    with environment(wanted, tmp_path / "all", quiet) as made:
        assert answer(made.python, "import asgiref; print(asgiref.VERSION)") == "99.0"


def test_what_only_the_product_can_give_is_named_if_it_is_missing(tmp_path: Path) -> None:
    wanted = lock(tmp_path, asked="slipway-no-such-package==1.0\n")
    with pytest.raises(Unavailable, match="slipway-no-such-package is missing"), ExitStack() as stack:
        stack.enter_context(environment(wanted, tmp_path / "all", quiet))


def test_a_failure_leaves_nothing_behind(wheels: Path, tmp_path: Path) -> None:
    wanted = lock(tmp_path, wheel(wheels, "alpha"), "missing==1.0 \\\n    --hash=sha256:00")
    with pytest.raises(Unavailable, match=r"no wheel of missing==1\.0 for this Python"), ExitStack() as stack:
        stack.enter_context(environment(wanted, tmp_path / "all", quiet))
    assert [path.name for path in (tmp_path / "all").iterdir() if path.is_dir()] == []


def test_a_wheel_for_another_machine_is_told(wheels: Path, tmp_path: Path) -> None:
    wanted = lock(tmp_path, wheel(wheels, "alpha", tag="cp27-cp27m-win32"))
    with pytest.raises(Unavailable, match=r"no wheel of alpha==1\.0"), ExitStack() as stack:
        stack.enter_context(environment(wanted, tmp_path / "all", quiet))


class Refusing(BaseHTTPRequestHandler):
    """A package index that lets nobody in."""

    def do_GET(self) -> None:
        self.send_error(403)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


@pytest.mark.parametrize("answers", [True, False], ids=["refuses", "absent"])
def test_an_index_that_refuses_or_is_not_there_is_told(
    answers: bool, wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = lock(tmp_path, "alpha==1.0 \\\n    --hash=sha256:00")
    index = HTTPServer(("127.0.0.1", 0), Refusing)
    threading.Thread(target=index.serve_forever).start()
    if not answers:
        index.shutdown()
        index.server_close()
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{index.server_port}/simple")
    monkeypatch.setenv("PIP_RETRIES", "0")
    said = "refuses with status 403" if answers else "cannot be reached"
    with pytest.raises(Unavailable, match=said), ExitStack() as stack:
        stack.enter_context(environment(wanted, tmp_path / "all", quiet))
    if answers:
        index.shutdown()
        index.server_close()


def test_a_wheel_that_is_not_the_locks_is_refused(wheels: Path, tmp_path: Path) -> None:
    wheel(wheels, "alpha")
    wanted = lock(tmp_path, f"alpha==1.0 \\\n    --hash=sha256:{'0' * 64}")
    with pytest.raises(Unavailable, match="a file that the lock does not have"), ExitStack() as stack:
        stack.enter_context(environment(wanted, tmp_path / "all", quiet))


def test_a_cancelled_making_leaves_nothing_and_runs_no_further(wheels: Path, tmp_path: Path) -> None:
    wanted = lock(tmp_path, wheel(wheels, "alpha"), wheel(wheels, "beta"))

    def tell(percent: float, step: str) -> None:
        if step.startswith("Fetching alpha"):
            raise Cancelled

    with pytest.raises(Cancelled), ExitStack() as stack:
        stack.enter_context(environment(wanted, tmp_path / "all", tell))
    assert not (tmp_path / "all" / wanted.folder_name).exists()


def test_the_remains_of_a_killed_making_are_made_anew(wheels: Path, tmp_path: Path) -> None:
    wanted = lock(tmp_path, wheel(wheels, "alpha"))
    remains = tmp_path / "all" / wanted.folder_name
    (remains / "bin").mkdir(parents=True)
    assert not is_ready(wanted, tmp_path / "all")
    with environment(wanted, tmp_path / "all", quiet) as made:
        assert answer(made.python, "import alpha; print(alpha.VERSION)") == "1.0"
    assert is_ready(wanted, tmp_path / "all")


_MAKER = """
import sys
from pathlib import Path
from dashboard.environments.locks import read_lock
from dashboard.environments.making import environment
def tell(percent, step):
    print(step, flush=True)
if len(sys.argv) > 3:
    sys.executable = sys.argv[3]
with environment(read_lock(Path(sys.argv[1])), Path(sys.argv[2]), tell) as made:
    print(made.folder.name, flush=True)
"""


def test_two_processes_make_an_environment_once(wheels: Path, tmp_path: Path) -> None:
    wanted = lock(tmp_path, wheel(wheels, "alpha"))
    command = [sys.executable, "-c", _MAKER, str(tmp_path / "tools.txt"), str(tmp_path / "all")]
    both = [subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = [process.communicate()[0].splitlines() for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert [lines[-1] for lines in said] == [wanted.folder_name] * 2
    assert sum("Making the environment 'tools'." in lines for lines in said) == 1


def test_a_process_that_is_killed_lets_the_next_one_make_it(wheels: Path, tmp_path: Path) -> None:
    wanted = lock(tmp_path, wheel(wheels, "alpha"))
    stops = tmp_path / "stops-itself"  # before it becomes Python, so that it is there however slow this test is
    stops.write_text(f'#!/bin/sh\nkill -STOP $$\nexec {sys.executable} "$@"\n')
    stops.chmod(0o755)
    command = [sys.executable, "-c", _MAKER, str(tmp_path / "tools.txt"), str(tmp_path / "all"), str(stops)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline().startswith("Making")
    [left] = psutil.Process(process.pid).children()
    wait_until(lambda: left.status() == psutil.STATUS_STOPPED)
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    said = []

    def tell(_: float, step: str) -> None:
        said.append(step)
        if step.startswith("Another job"):
            left.resume()

    try:
        with environment(wanted, tmp_path / "all", tell) as made:
            assert answer(made.python, "import alpha; print(alpha.VERSION)") == "1.0"
    finally:
        with suppress(psutil.NoSuchProcess):
            left.kill()
    assert said[0] == "Another job makes the environment 'tools'.", "the program that was left may still write"


# -- removal -----------------------------------------------------------------------------------------------------------
@pytest.fixture
def old(wheels: Path, tmp_path: Path) -> Iterator[Path]:
    """The folder of an environment whose lock has changed since."""
    wanted = lock(tmp_path, wheel(wheels, "alpha"))
    with environment(wanted, tmp_path / "all", quiet) as made:
        return made.folder


def test_an_environment_whose_lock_has_changed_is_removed(old: Path, wheels: Path, tmp_path: Path) -> None:
    newer = lock(tmp_path, wheel(wheels, "alpha", "1.1"))
    assert remove_unused(tmp_path / "all", [newer]) == [old.name]
    assert not old.exists()


def test_an_environment_that_is_wanted_stays(old: Path, tmp_path: Path) -> None:
    assert remove_unused(tmp_path / "all", [read_lock(tmp_path / "tools.txt")]) == []
    assert (old / WHOLE).exists()


def test_an_environment_in_use_stays_until_its_block_ends(old: Path, tmp_path: Path) -> None:
    wanted, inside, leave = read_lock(tmp_path / "tools.txt"), threading.Event(), threading.Event()

    def use() -> None:
        with environment(wanted, tmp_path / "all", quiet):
            inside.set()
            leave.wait()

    user = threading.Thread(target=use)
    user.start()
    inside.wait()
    assert remove_unused(tmp_path / "all", []) == []
    leave.set()
    user.join()
    assert wait_until(lambda: remove_unused(tmp_path / "all", [])) == [old.name]


# -- sentences ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("said", "kind", "words"),
    [
        ("ERROR: Could not install packages: [Errno 28] No space left on device", StorageFull, "disk is full"),
        ("NewConnectionError('Name or service not known')\nERROR: No matching distribution found for onnx==1.23.2", Unavailable,
         "cannot be reached"),
        ("ERROR: HTTP error 403 while getting https://index/onnx.whl", Unavailable, "refuses with status 403"),
        ("ERROR: 401 Client Error: Unauthorized for url: https://index/simple", Unavailable, "refuses with status 401"),
        ("SSLError(SSLCertVerificationError(1, '[SSL: CERTIFICATE_VERIFY_FAILED]'))", Unavailable, "certificate"),
        ("/usr/bin/python3: No module named pip", Unavailable, "has no pip"),
        ("ERROR: Something new happened.", Unavailable, "Something new happened"),
        ("", Unavailable, "without a word"),
    ],
)  # fmt: skip
def test_a_failure_is_one_sentence_with_what_to_do(said: str, kind: type[DashboardError], words: str) -> None:
    error = sentence_of(said, Lock("tabular", {}, {}, ()))
    assert type(error) is kind
    assert error.message.startswith("the environment 'tabular' could not be made: ")
    assert words in error.message
    assert "\n" not in error.message


@pytest.mark.parametrize("path", sorted((ROOT / "requirements" / "convert").glob("*.in")), ids=lambda path: path.stem)
def test_the_locks_of_conversions_have_hashes_and_borrow_from_the_product(path: Path) -> None:
    found = read_lock(path.with_suffix(".txt"))
    assert found.hashed
    assert set(found.missing) <= ({"tensorrt-cu13"} if path.stem == "tensorrt" else set())  # of machines with a GPU
    assert {"numpy", "onnx"} <= found.borrowed.keys() | found.entries.keys()
    assert "numpy" in found.borrowed
