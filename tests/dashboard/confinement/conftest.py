"""Programs that attack the machine, run under this account and, as root, under `nobody`."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from dashboard.confinement.bounds import Bound, Limits, Outcome
from dashboard.confinement.program import run
from dashboard.confinement.promises import Promise, Protections, protections
from tests.support.serving_process import wait_until

ROOT = Path(__file__).resolve().parents[3]
NOBODY = 65534
LIMITS: dict[str, Any] = {
    "memory_bytes": 512 << 20,
    "cpu_seconds": 60,
    "wall_seconds": 120,
    "processes": 32,
    "file_bytes": 32 << 20,
    "output_bytes": 4 << 20,
}


@dataclass
class Confined:
    """Runs programs, and knows their processes by a variable of their environment."""

    folder: Path
    python: str = sys.executable
    uid: int | None = None  # another account
    lacks: dict[str, Any] = field(default_factory=dict)  # means that the machine is taken to lack
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)
    lines: list[str] = field(default_factory=list)

    def run(
        self, code: str, *, reads: Sequence[Path] = (), limits: dict[str, Any] | None = None, **more: Any
    ) -> Outcome:
        """Run Python code until it ends."""
        order = self.order(code, reads, limits)
        if self.uid is None:
            found = Protections(replace(protections().means, **self.lacks))
            return run(
                order["command"],
                folder=self.folder,
                reads=reads,
                limits=Limits(**order["limits"]),
                environment=order["environment"],
                check=more.pop("check", lambda: None),
                on_line=self.lines.append,
                given_up=tuple(found.missing),
                found=found,
                **more,
            )
        with self.runner(order) as runner:
            assert runner.stdout is not None
            *lines, outcome = [json.loads(line) for line in runner.stdout]
        self.lines += [line["line"] for line in lines]
        bound = outcome.pop("bound")
        return Outcome(bound=bound and Bound(bound), **outcome)

    def order(self, code: str, reads: Sequence[Path] = (), limits: dict[str, Any] | None = None) -> dict[str, Any]:
        return {
            "command": [self.python, "-c", code],
            "folder": str(self.folder),
            "reads": [str(path) for path in reads],
            "limits": asdict(Limits(**LIMITS | (limits or {}))),
            "environment": {"PATH": "/usr/bin:/bin", "MARK": self.mark},
            "lacks": self.lacks,
        }

    def runner(self, order: dict[str, Any]) -> subprocess.Popen[str]:
        """Start a process that runs the program."""
        paths = [str(ROOT), str(Path(psutil.__file__).parents[1])]
        process = subprocess.Popen(
            [self.python, "-m", "tests.dashboard.confinement.runner"],
            cwd=ROOT,
            env={"PATH": "/usr/bin:/bin", "PYTHONPATH": ":".join(paths), "PYTHONDONTWRITEBYTECODE": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            user=self.uid,
            group=self.uid,
            extra_groups=None if self.uid is None else [],
        )
        assert process.stdin is not None
        process.stdin.write(json.dumps(order) + "\n")
        process.stdin.close()
        return process

    def processes(self) -> list[psutil.Process]:
        """The program's processes that run now."""
        return [process for process in psutil.process_iter() if self._is_ours(process)]

    def _is_ours(self, process: psutil.Process) -> bool:
        try:
            return bool(process.environ().get("MARK") == self.mark and process.status() != psutil.STATUS_ZOMBIE)
        except (psutil.Error, OSError):
            return False


def needs(*promises: Promise) -> pytest.MarkDecorator:
    """Skip tests of promises that this machine does not keep."""
    missing = [protections().missing[promise] for promise in promises if promise in protections().missing]
    return pytest.mark.skipif(bool(missing), reason=f"this machine {' and '.join(missing)}")


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Confined]:
    """Programs under this account. None of their processes is left."""
    folder = tmp_path / "its own"
    folder.mkdir()
    confined = Confined(folder)
    yield confined
    assert confined.processes() == []


@pytest.fixture
def nobody() -> Iterator[Confined]:
    """Programs under the account `nobody`, with a Python that it may run."""
    if os.getuid() != 0:
        pytest.skip("only root can run a program under another account")
    python = shutil.which(f"python3.{sys.version_info.minor}", path="/usr/bin")
    if python is None:
        pytest.skip("the system has no Python of this version")
    with tempfile.TemporaryDirectory(prefix="confined-") as folder:
        os.chown(folder, NOBODY, NOBODY)
        confined = Confined(Path(folder), python, NOBODY)
        yield confined
        assert confined.processes() == []


@pytest.fixture(params=["own", "nobody"])
def confined(request: pytest.FixtureRequest) -> Confined:
    """Programs under either account."""
    found: Confined = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def outside() -> Iterator[Path]:
    """A folder that is not the program's, with a file that every account may read and write."""
    with tempfile.TemporaryDirectory(prefix="outside-") as folder:
        secret = Path(folder, "secret")
        secret.write_text("secret")
        for path in (Path(folder), secret):
            path.chmod(0o777)
        yield Path(folder)


def gone(confined: Confined) -> None:
    """Wait until no process of the program is left."""
    wait_until(lambda: not confined.processes(), what="the end of the program's processes")
