"""A data folder or a database that cannot be used: one sentence of what is wrong, and the end; no stack, nothing started."""

import contextlib
import json
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from repository.core.server_version import VERSION
from tests.dashboard.web_process import answers, listening, migrate
from tests.support.ports import free_ports
from tests.support.serving_process import PATIENCE_S, ROOT
from tests.support.up_process import PORT_SETTINGS

UP = ("manage.py", "up")
WATCH = ("manage.py", "watch")
DAPHNE = ("-m", "daphne", "-p", "0", "dashboard.asgi:application")
# Celery warns whoever is root, before it looks at anything.
WORKER = ("-W", "ignore", "-m", "celery", "-A", "dashboard", "--skip-checks", "worker", "--pool", "threads")


def run(data: Path, command: tuple[str, ...], *before: str) -> tuple[int, str]:
    """Exit status and what it said; `before` is put in front of the command line."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("SLIPWAY_")}
    ports = dict(zip(PORT_SETTINGS, map(str, free_ports(4)), strict=True))
    done = subprocess.run(
        [*before, sys.executable, *command],
        cwd=ROOT,
        env={**inherited, **ports, "DJANGO_SETTINGS_MODULE": "dashboard.settings", "SLIPWAY_DATA": str(data)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=2 * PATIENCE_S,
    )
    return done.returncode, done.stdout


def is_one_sentence(outcome: tuple[int, str], *parts: str) -> None:
    status, said = outcome
    assert status == 1, said
    assert "Traceback" not in said
    lines = [line for line in said.splitlines() if line.strip()]
    assert len(lines) == 1, said
    for part in parts:
        assert part in lines[0]


def a_file(data: Path) -> None:
    data.write_text("")


def database_of_garbage(data: Path) -> None:
    data.mkdir()
    (data / "db.sqlite3").write_text("this was a database once" * 100)


def database_that_is_a_folder(data: Path) -> None:
    (data / "db.sqlite3").mkdir(parents=True)


def lock_that_cannot_be_taken(data: Path) -> None:
    (data / "up.lock").mkdir(parents=True)


def key_that_cannot_be_read(data: Path) -> None:
    (data / "control_key").mkdir(parents=True)


@pytest.mark.parametrize("command", [UP, WATCH], ids=["up", "watch"])
@pytest.mark.parametrize(
    ("harm", "expected"),
    [
        (
            database_of_garbage,
            "The database db.sqlite3 in the data folder (SLIPWAY_DATA) is damaged: file is not a database",
        ),
        (database_that_is_a_folder, "db.sqlite3 in the data folder (SLIPWAY_DATA) cannot be used: unable to open"),
    ],
    ids=["garbage", "folder"],
)
def test_a_database_that_cannot_be_used_ends_with_one_sentence(
    tmp_path: Path, command: tuple[str, ...], harm: Callable[[Path], None], expected: str
):
    harm(tmp_path / "data")
    is_one_sentence(run(tmp_path / "data", command), "CommandError: ", expected)


def test_a_lock_that_cannot_be_taken_ends_with_one_sentence(tmp_path: Path):
    lock_that_cannot_be_taken(tmp_path / "data")
    expected = ".lock in the data folder (SLIPWAY_DATA) cannot be written: Is a directory"
    is_one_sentence(run(tmp_path / "data", UP), "CommandError: ", expected)


@pytest.mark.parametrize("command", [UP, WATCH, DAPHNE, WORKER], ids=["up", "watch", "daphne", "worker"])
@pytest.mark.parametrize(
    ("harm", "expected"),
    [
        (a_file, "The data folder (SLIPWAY_DATA) cannot be written: File exists."),
        (key_that_cannot_be_read, "Control_key in the data folder (SLIPWAY_DATA) cannot be used: Is a directory."),
    ],
    ids=["file", "key"],
)
def test_a_data_folder_that_cannot_be_used_ends_every_process_with_one_sentence(
    tmp_path: Path, command: tuple[str, ...], harm: Callable[[Path], None], expected: str
):
    harm(tmp_path / "data")
    is_one_sentence(run(tmp_path / "data", command), expected)


@pytest.fixture(scope="module")
def namespace() -> tuple[str, ...]:
    """The beginning of a command line that may mount a file system which no other process sees."""
    command = ("unshare", "--map-root-user", "--mount")
    mount = [*command, "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    if shutil.which("unshare") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("this account may not mount anything, even in a namespace of its own")
    return command


@pytest.mark.parametrize("command", [UP, WATCH], ids=["up", "watch"])
@pytest.mark.parametrize(
    ("mount", "expected"),
    [
        ('mount --bind "$0" "$0" && mount -o remount,bind,ro "$0"', "Read-only file system"),
        ('mount -t tmpfs -o size=64k tmpfs "$0" && { cat /dev/zero > "$0/filler" || true; } 2>/dev/null', "space left"),
    ],
    ids=["read-only", "full"],
)
def test_a_read_only_or_full_data_folder_ends_with_one_sentence(
    tmp_path: Path, namespace: tuple[str, ...], command: tuple[str, ...], mount: str, expected: str
):
    data = tmp_path / "data"
    data.mkdir()
    before = (*namespace, "sh", "-c", f'{mount} && exec "$@"', str(data))
    is_one_sentence(run(data, command, *before), "data folder (SLIPWAY_DATA)", expected)


def test_a_database_with_a_damaged_page_is_noticed_before_anything_starts(tmp_path: Path):
    data = tmp_path / "data"
    migrate(data)
    path = data / "db.sqlite3"
    content = bytearray(path.read_bytes())
    content[20 * 4096 : 40 * 4096] = os.urandom(20 * 4096)
    path.write_bytes(content)
    is_one_sentence(run(data, UP), "is damaged: ", "move it away to begin with an empty one")


def doctor(data: Path, *before: str) -> dict[str, str]:
    """Run `manage.py doctor` where something is wrong, and return the faults of each check."""
    data.chmod(0o700)
    status, said = run(data, ("manage.py", "doctor", "--json"), *before)
    assert status == 1, said
    told = json.loads(said)
    assert not told["well"]
    assert all(one["faults"] for one in told["checks"] if one["state"] == "wrong")
    return {one["check"]: " ".join(one["faults"]) for one in told["checks"] if one["state"] == "wrong"}


@pytest.mark.parametrize(
    ("variables", "harm", "check", "told"),
    [
        ((), a_file, "settings", "cannot be written: File exists"),
        (("SLIPWAY_PROT=1",), migrate, "settings", "unknown setting SLIPWAY_PROT; is it SLIPWAY_PORT?"),
        ((), database_of_garbage, "database", "move it away to begin with an empty one"),
        (
            ("DATABASE_URL=postgres://a@127.0.0.1:1/b",),
            migrate,
            "database",
            "Start PostgreSQL, or correct DATABASE_URL.",
        ),
    ],
    ids=["file", "variable", "garbage", "away"],
)
def test_the_doctor_tells_what_lets_nothing_start(
    tmp_path: Path, variables: tuple[str, ...], harm: Callable[[Path], None], check: str, told: str
) -> None:
    harm(tmp_path / "data")
    found = doctor(tmp_path / "data", "env", *variables)
    assert list(found) == [check]
    assert told.lower() in found[check].lower()


def test_the_doctor_tells_that_the_disk_is_read_only(tmp_path: Path, namespace: tuple[str, ...]) -> None:
    data = tmp_path / "data"
    migrate(data)
    data.chmod(0o700)
    assert run(data, ("manage.py", "doctor"))[0] == 0  # the settings make the folders
    found = doctor(
        data, *namespace, "sh", "-c", 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && "$@"', str(data)
    )
    assert "read-only; look for errors of the disk, and mount it for writing" in found["writing"]


# -- a database of a newer release -------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def newer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder whose database has had a migration of a later release, which has taken away what this one needs."""
    data = tmp_path_factory.mktemp("newer") / "data"
    migrate(data)
    with contextlib.closing(sqlite3.connect(data / "db.sqlite3")) as database, database:
        database.execute(
            "INSERT INTO django_migrations (app, name, applied) VALUES ('dashboard', '9999_of_the_future', '2030-01-01')"
        )
        database.execute(
            "INSERT INTO dashboard_schemachange (migration, release, minimum_release) "
            "VALUES ('9999_of_the_future', '99.2.0', '99.1.0')"
        )
    return data


@pytest.mark.parametrize("command", [UP, WATCH, DAPHNE, WORKER], ids=["up", "watch", "web", "worker"])
def test_a_database_of_a_newer_release_is_refused(newer: Path, command: tuple[str, ...]) -> None:
    before = (newer / "db.sqlite3").read_bytes()
    outcome = run(newer, command)
    is_one_sentence(outcome, "Release 99.2.0 of Slipway", f"this one, {VERSION}", "start release 99.1.0 or a newer")
    assert (newer / "db.sqlite3").read_bytes() == before


def test_the_doctor_tells_that_the_database_is_of_a_newer_release(newer: Path) -> None:
    assert "start release 99.1.0 or a newer one" in doctor(newer)["database"]


def test_a_database_that_a_newer_release_has_only_expanded_is_used(newer: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    shutil.copytree(newer, data)
    with contextlib.closing(sqlite3.connect(data / "db.sqlite3")) as database, database:
        database.execute("UPDATE dashboard_schemachange SET minimum_release = '' WHERE release = '99.2.0'")
        database.execute("ALTER TABLE dashboard_job ADD COLUMN of_the_future text")
    with listening(data, "-m", "daphne") as (address, _):
        assert answers(address)
