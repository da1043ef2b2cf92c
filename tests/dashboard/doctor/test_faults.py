"""Every fault of the list is injected, and `manage.py doctor` says what is wrong and what to do."""

import contextlib
import os
import signal
import socket
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import trustme
from django.db.migrations.recorder import MigrationRecorder
from django.utils import timezone

from dashboard.access.authorisation import SYSTEM
from dashboard.alerts import machine as memory
from dashboard.captures.services import capture_start
from dashboard.doctor import machine, serving
from dashboard.doctor.check import Check, Finding, examine
from dashboard.doctor.table import CHECKS
from dashboard.jobs.outbox import WAITS
from dashboard.jobs.services import job_create
from dashboard.models import Capture, Job, Model, ModelState, Server, ServerEnvironment, ServerEvent, Version
from dashboard.shared import heartbeat
from dashboard.supervisor import installation
from repository.core.captures import COUNTS
from tests.dashboard.conftest import beaten
from tests.support import engines
from tests.support.ports import HOST, free_port
from tests.support.serving_process import ServerProcess

pytestmark = pytest.mark.django_db
BY_NAME = {check.name: check for check in CHECKS}
NOBODY = 65534


class House(NamedTuple):
    """An installation without a fault, with one model."""

    settings: Any
    folder: Path
    relu: Version
    patch: pytest.MonkeyPatch
    stack: contextlib.ExitStack

    def undo(self, work: Callable[..., Any], *arguments: Any) -> None:
        self.stack.callback(work, *arguments)


@pytest.fixture
def house(
    settings: Any, tmp_path: Path, relu: Version, monkeypatch: pytest.MonkeyPatch, unqueued: list[int]
) -> Iterator[House]:
    tmp_path.chmod(0o700)
    settings.DATA_DIR = settings.SHARED_DIR = tmp_path
    settings.DASHBOARD_PORT, settings.SERVER_HTTP_PORT = free_port(), free_port()
    settings.SERVER_GRPC_PORT, settings.SERVER_METRICS_PORT = free_port(), free_port()
    settings.DISK_RESERVE_BYTES = 0
    with contextlib.ExitStack() as stack:
        yield House(settings, tmp_path, relu, monkeypatch, stack)


def look(name: str) -> Finding:
    """Make one check, whatever it stands on."""
    (found,) = examine([BY_NAME[name]])
    return found


# -- the faults ----------------------------------------------------------------------------------------------------------
def misspelt_variable(house: House) -> None:
    house.patch.setenv("REDIS_URI", "redis://localhost")


def debug_for_everybody(house: House) -> None:
    house.settings.DEBUG, house.settings.DASHBOARD_HOST = True, "0.0.0.0"


def address_that_is_not_allowed(house: House) -> None:
    house.settings.PUBLIC_URL = "https://slipway.example.org"


def flag_that_up_sets(house: House) -> None:
    house.settings.SERVER_FLAGS = ["--http-port=1"]


def other_packages(house: House) -> None:
    (house.folder / "server.txt").write_text("django==1.0 \\\n    --hash=sha256:0\n")
    house.patch.setattr(machine, "REQUIREMENTS", house.folder)


def missing_package(house: House) -> None:
    (house.folder / "server.txt").write_text("slipway-absent==1.0\nother-absent==1 ; python_version < '3'\n")
    house.patch.setattr(machine, "REQUIREMENTS", house.folder)


def no_static_files(house: House) -> None:
    house.settings.STATICFILES_DIRS = [house.folder]


def key_for_everybody(house: House) -> None:
    (house.folder / "control_key").write_text("x" * 40)
    (house.folder / "control_key").chmod(0o644)
    house.folder.chmod(0o755)


def folder_of_another(house: House) -> None:
    (house.folder / "models").chmod(0)
    for parent in (house.folder, *house.folder.parents[:2]):
        house.undo(parent.chmod, parent.stat().st_mode & 0o7777)
        parent.chmod(0o777)
    if os.geteuid() == 0:
        os.seteuid(NOBODY)
        house.undo(os.seteuid, 0)


def small_disk(house: House, *options: str) -> Path:
    folder = house.folder / "small"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", folder], capture_output=True).returncode:
        pytest.skip("only root may mount a disk")
    house.undo(subprocess.run, ["umount", folder])
    house.settings.DATA_DIR = house.settings.SHARED_DIR = folder
    return folder


def full_disk(house: House) -> None:
    folder = small_disk(house)
    with contextlib.suppress(OSError):
        (folder / "filler").write_bytes(bytes(1 << 20))


def read_only_disk(house: House) -> None:
    subprocess.run(["mount", "-o", "remount,ro", small_disk(house)], check=True)


def disk_below_its_reserve(house: House) -> None:
    house.settings.DISK_RESERVE_BYTES = 1 << 60


def nfs(options: str) -> Callable[[House], None]:
    def mount(house: House) -> None:
        shared = house.folder / "shared"
        shared.mkdir()
        house.settings.SHARED_DIR = shared
        (house.folder / "mounts").write_text(
            f"1 0 8:1 / / rw - ext4 /dev/sda1 rw\n2 1 0:50 / {shared} rw,relatime shared:1 - nfs4 nas:/slipway rw,{options}\n"
        )
        house.patch.setattr(machine, "MOUNTS", house.folder / "mounts")

    return mount


def taken_port(house: House) -> None:
    listener = house.stack.enter_context(socket.socket())
    listener.bind((HOST, house.settings.DASHBOARD_PORT))
    listener.listen()


def gpu_without_cuda(house: House) -> None:
    (house.folder / "driver").touch()
    house.patch.setattr(machine, "DRIVER", house.folder / "driver")
    (house.folder / "torch.py").write_text("class version: cuda = None\nclass cuda: is_available = lambda: False\n")
    house.patch.setenv("PYTHONPATH", str(house.folder))


def old_driver(house: House) -> None:
    gpu_without_cuda(house)
    (house.folder / "torch.py").write_text("class version: cuda = '13.0'\nclass cuda: is_available = lambda: False\n")


def silent_watcher(_: House) -> None:
    then = time.time() - 40
    os.utime(beaten("watch"), (then, then))


def pages_that_hang(_: House) -> None:
    heartbeat.beat("web")


def no_redis(house: House) -> None:
    house.settings.REDIS_URL = f"redis://{HOST}:{free_port()}/0"


def frozen_redis(house: House) -> None:
    if "redis-server" in engines.MISSING:
        pytest.skip("needs Debian's package redis-server")
    engine = house.stack.enter_context(engines.redis())
    house.settings.REDIS_URL = f"redis://{HOST}:{engine.port}/0"
    assert look("queue").state == "ok"
    engine.signal(signal.SIGSTOP)


def missing_migration(_: House) -> None:
    MigrationRecorder.Migration.objects.filter(app="dashboard").latest("pk").delete()


def of_one_installation(house: House) -> Path:
    shared = house.folder / "shared"
    shared.mkdir()
    house.settings.SHARED_DIR = shared
    installation.check_installation()
    return shared


def other_key(house: House) -> None:
    of_one_installation(house)
    house.settings.SERVER_CONTROL_KEY = "x" * 40


def other_folder(house: House) -> None:
    of_one_installation(house)
    house.settings.SHARED_DIR = house.folder / "another"
    house.settings.SHARED_DIR.mkdir()


def only_pages(_: House) -> None:
    heartbeat.beat("web")


def no_leader(_: House) -> None:
    heartbeat.beat("watch")


def waiting_jobs(step: str) -> Callable[[House], None]:
    def wait(house: House) -> None:
        job_create(kind="drift", params={"monitor": 0}, actor=SYSTEM, title="Look", model=house.relu.model)
        Job.objects.update(queued_at=timezone.now() - timedelta(minutes=3), step=step)
        Job.objects.exclude(state="queued").delete()

    return wait


def no_memory(house: House) -> None:
    house.patch.setattr(memory, "machine_memory", lambda: memory.Memory(1 << 20, 1 << 30))


def ended_certificate(house: House) -> None:
    authority, ended = trustme.CA(), datetime.now(UTC) - timedelta(days=1)
    issued = authority.issue_cert("localhost", not_after=ended, not_before=ended - timedelta(days=9))
    issued.cert_chain_pems[0].write_to_path(house.folder / "old.pem")
    house.settings.SERVER_FLAGS = [f"--metrics-certificate={house.folder / 'old.pem'}"]


def no_certificate(house: House) -> None:
    house.settings.SERVER_FLAGS = [f"--metrics-certificate={house.folder / 'absent.pem'}"]


def lost_service(_: House) -> None:
    said = "the Kubernetes API at https://10.0.0.1:443 did not answer in 5 s"
    ServerEnvironment.objects.create(name="eu", kubernetes_service="prod/triton", lookup_error=said)


def server_away(_: House) -> None:
    heartbeat.beat("watch")


def crashes(house: House) -> None:
    server = Server.objects.get()
    for _ in range(3):
        ServerEvent.objects.create(server=server, kind="crashed", message="Killed by signal 9.")


def failed_model(house: House) -> None:
    ModelState.objects.update(state="UNAVAILABLE", reason="no such operator")


def model_folder(house: House) -> Path:
    return Path(house.settings.MODEL_REPOSITORY) / "relu"


def missing_weights(house: House) -> None:
    (model_folder(house) / "1" / "model.onnx").unlink()


def changed_by_hand(house: House) -> None:
    Model.objects.update(drift=["config.pbtxt was changed"])


def unknown_folder(house: House) -> None:
    folder = Path(house.settings.MODEL_REPOSITORY) / "stranger" / "1"
    folder.mkdir(parents=True)
    (folder / "model.onnx").touch()


def no_repository(house: House) -> None:
    house.settings.MODEL_REPOSITORY = house.folder / "absent"


def leftover(house: House) -> None:
    folder = Path(house.settings.STAGING_DIR) / str(uuid.uuid4())
    folder.mkdir()
    os.utime(folder, (0, 0))


def damaged_capture(house: House) -> None:
    (Capture.objects.get().folder / COUNTS).write_text("{")


def start_capture(house: House) -> None:
    capture_start(model=house.relu.model, actor=SYSTEM, consent=True)


def no_bucket(house: House) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        house.patch.setenv(name, "any")
    house.settings.REPOSITORY_BUCKET = f"s3://{HOST}:{free_port()}/bucket/prefix"


# check -> faults, each with what the report says: what is wrong, and what to do
FAULTS: dict[str, list[tuple[Callable[[House], None], str, str]]] = {
    "settings": [
        (misspelt_variable, "REDIS_URI is not used", "looks like REDIS_URL: rename it"),
        (debug_for_everybody, "stack traces to everybody", "set it to 0"),
        (address_that_is_not_allowed, "answered with 400", "add slipway.example.org to SLIPWAY_ALLOWED_HOSTS"),
        (flag_that_up_sets, "cannot have --http-port", "remove it"),
    ],
    "packages": [
        (other_packages, "django 5", "(not 1.0); run make"),
        (missing_package, "missing: slipway-absent;", "run make"),
    ],
    "static": [(no_static_files, "Files of the pages are missing", "install this release again")],
    "rights": [
        (key_for_everybody, "may read control_key", "chmod 600"),
        (folder_of_another, "of the data folder (SLIPWAY_DATA): give the folder", "chown -R"),
    ],
    "writing": [(full_disk, "disk is full", "free some space"), (read_only_disk, "read-only", "mount it for writing")],
    "disk": [(disk_below_its_reserve, "disk of the data folder is nearly full", "delete versions")],
    "mount": [
        (nfs("vers=4.2"), "up to 60 s late", "actimeo=1"),
        (nfs("vers=3,acregmax=1"), "NFS 3", "vers=4.2"),
    ],
    "ports": [(taken_port, "is taken", "set SLIPWAY_PORT")],
    "gpu": [
        (gpu_without_cuda, "build for CPUs", "pip install torch"),
        (old_driver, "CUDA 13.0 does not run", "update the driver"),
    ],
    "silence": [(silent_watcher, "The watcher does not answer", "restart Slipway")],
    "pages": [(pages_that_hang, "dashboard does not answer", "read logs/dashboard.log")],
    "queue": [
        (no_redis, "Redis does not answer", "start it, or correct REDIS_URL"),
        (frozen_redis, "Redis does not answer", "start it, or correct REDIS_URL"),
    ],
    "tables": [(missing_migration, "lacks a change of this release", "manage.py migrate")],
    "installation": [
        (other_key, "keys are not those of the other machines", "set SLIPWAY_CONTROL_KEY to the same values"),
        (other_folder, "folder of models is not the one", "set SLIPWAY_SHARED"),
    ],
    "processes": [(only_pages, "No watcher runs on any machine", "manage.py up --only watch")],
    "leader": [(no_leader, "No watcher leads", "read why in logs/watch.log")],
    "jobs": [
        (waiting_jobs(""), "1 jobs have waited", "start a worker"),
        (waiting_jobs(WAITS), "the queue did not take them", "the check of the queue"),
    ],
    "memory": [(no_memory, "short of memory", "Unload one")],
    "ends": [(ended_certificate, "Certificate old.pem has ended", "Make a new one")],
    "certificates": [(no_certificate, "absent.pem cannot be read", "correct its path")],
    "servers": [(server_away, "server local does not answer", "read logs/server.log")],
    "lookups": [(lost_service, "Servers of eu are not looked up (the Kubernetes API", "correct this, or its settings")],
    "crashes": [(crashes, "crashed 3 times", "Read its last lines")],
    "models": [(failed_model, "Model relu is not ready. No such operator. ", "correct the model")],
    "repository": [
        (missing_weights, "Files of version 1 of relu are missing (1/model.onnx)", "put back a copy"),
        (changed_by_hand, "changed by hand (relu)", "adopt or overwrite"),
        (unknown_folder, "no models (stranger)", "adopt them"),
        (no_repository, "The folder of models is missing", "mount the shared folder"),
    ],
    "bucket": [(no_bucket, "repository (SLIPWAY_REPOSITORY) cannot be reached", "until it answers")],
    "staging": [(leftover, "1 folders of uploads that have ended", "see that a watcher runs")],
    "captures": [(damaged_capture, "a file is damaged", "or delete the capture")],
}
# In tests/dashboard/test_machines.py, which has PostgreSQL, and tests/dashboard/supervisor/test_bad_data_folder.py.
ELSEWHERE = {"clock", "sessions", "database"}


@pytest.mark.parametrize(
    ("name", "inject", "wrong", "remedy"),
    [
        pytest.param(name, *fault, id=f"{name}-{fault[0].__name__}-{number}")
        for name, faults in FAULTS.items()
        for number, fault in enumerate(faults)
    ],
)
def test_a_fault_is_told_with_what_to_do(
    house: House, name: str, inject: Callable[[House], None], wrong: str, remedy: str
) -> None:
    if name == "captures":
        start_capture(house)
    before = look(name)
    assert before.state != "wrong", before
    inject(house)
    found = look(name)
    assert found.state == "wrong", found
    told = " ".join(found.faults)
    assert wrong in told, told
    assert remedy in told, told
    assert all(fault.endswith(".") and str(house.folder) not in fault for fault in found.faults), told


def test_every_check_has_a_fault_that_a_test_injects() -> None:
    assert {check.name for check in CHECKS} == FAULTS.keys() | ELSEWHERE


def test_a_check_whose_ground_is_faulty_is_not_made() -> None:
    def never() -> Iterator[str]:
        raise AssertionError

    checks = [Check("a", "A", lambda: ["it is broken"]), Check("b", "B", never, "a"), Check("c", "C", never, "b")]
    assert [one.state for one in examine(checks)] == ["wrong", "skipped", "skipped"]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with a model that cannot load."""
    folder = tmp_path_factory.mktemp("models")
    (folder / "odd" / "1").mkdir(parents=True)
    (folder / "odd" / "1" / "model.onnx").write_text("no model")
    flags = ("--exit-on-error=false", "--http-restricted-api=model-repository:slipway-control-key=" + "k" * 40)
    with ServerProcess(folder, *flags, wait="live") as server:
        yield server


def test_what_is_wrong_with_a_server_that_answers(house: House, running: ServerProcess) -> None:
    heartbeat.beat("watch")
    Server.objects.update(http_url=running.http_url)
    house.settings.SERVER_CONTROL_KEY = "x" * 40
    (refused,) = look("servers").faults
    assert "refuses the control key" in refused
    assert "start it again with the key of this machine" in refused
    house.settings.SERVER_CONTROL_KEY = "k" * 40
    (unready,) = look("servers").faults
    assert "is not ready: read on its page which model" in unready
    house.patch.setattr(serving, "BASE_DIR", house.folder)
    (house.folder / "pyproject.toml").write_text("[project]\nversion = '9.0'\n")
    other, _ = look("servers").faults
    assert "and the dashboard of 9.0: restart the older one" in other
