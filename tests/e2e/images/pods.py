"""Runs an image as a kubelet and containerd do: with runc, a pod's own network, a user, limits, volumes and a grace.

with Pod() as pod, Container(pod, "slipway-server", "--model-repository=/models", volumes={"/models": folder}) as server:
    httpx.get(f"http://{pod.address}:8000/v2/health/ready")

Images are those of buildah's storage. Not as on a node: no seccomp profile, and the control groups are this machine's.
"""

import itertools
import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.support.serving_process import PATIENCE_S

USER = 10001  # of the manifests
TAG = os.environ.get("TAG", "dev")
_NUMBERS = itertools.count(1)
# What containerd leaves to a container whose manifest drops nothing.
_DEFAULT_CAPABILITIES = [
    *(
        "CAP_CHOWN",
        "CAP_DAC_OVERRIDE",
        "CAP_FSETID",
        "CAP_FOWNER",
        "CAP_MKNOD",
        "CAP_NET_RAW",
        "CAP_SETGID",
        "CAP_SETUID",
    ),
    *("CAP_SETFCAP", "CAP_SETPCAP", "CAP_NET_BIND_SERVICE", "CAP_SYS_CHROOT", "CAP_KILL", "CAP_AUDIT_WRITE"),
]
_MASKED = ["/proc/acpi", "/proc/kcore", "/proc/keys", "/proc/timer_list", "/proc/sched_debug", "/sys/firmware"]
_READ_ONLY = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"]


def output(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
    return done.stdout.strip()


def configuration(image: str) -> dict[str, Any]:
    """Return an image's configuration: Entrypoint, Cmd, Env, User, Labels and so on."""
    found: dict[str, Any] = json.loads(output("buildah", "inspect", "--type=image", f"localhost/{image}:{TAG}"))
    return found["OCIv1"]["config"]


class Pod:
    """A network that its containers share. address: the pod's; host: this machine's in that network."""

    def __enter__(self) -> "Pod":
        number = next(_NUMBERS)
        self.name, outside = f"slipway-{os.getpid()}-{number}", f"sw{os.getpid()}x{number}"
        network = f"10.{200 + os.getpid() % 50}.{os.getpid() // 50 % 250}"
        self.host, self.address = f"{network}.{number * 4 + 1}", f"{network}.{number * 4 + 2}"
        self.namespace = f"/run/netns/{self.name}"
        output("ip", "netns", "add", self.name)
        try:
            output("ip", "link", "add", outside, "type", "veth", "peer", "name", "eth0", "netns", self.name)
            output("ip", "addr", "add", f"{self.host}/30", "dev", outside)
            output("ip", "link", "set", outside, "up")
            output("ip", "-n", self.name, "addr", "add", f"{self.address}/30", "dev", "eth0")
            for device in ("lo", "eth0"):
                output("ip", "-n", self.name, "link", "set", device, "up")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        output("ip", "netns", "del", self.name)  # its device goes with it


class Container:
    """A container of an image, which runs until the block ends.

    arguments, command: as `args` and `command` of a manifest. volumes: path in the container -> folder of this machine, which
    it may write if it is the container's, or None for a new empty one. restricted: with the security context of
    our manifests, else with what a manifest that says nothing gets.
    """

    def __init__(
        self,
        pod: Pod,
        image: str,
        *arguments: str,
        command: list[str] | None = None,
        environment: Mapping[str, str] | None = None,
        volumes: Mapping[str, Path | None] | None = None,
        restricted: bool = True,
        memory: int = 2 << 30,
        cpus: float = 2.0,
    ) -> None:
        self._image, config = f"localhost/{image}:{TAG}", configuration(image)
        own = command if command is not None else config["Entrypoint"]
        rest = list(arguments) or ([] if command is not None else config.get("Cmd") or [])
        user, _, group = config["User"].partition(":")
        assert (user, group) == (str(USER), str(USER))
        told = dict(line.split("=", 1) for line in config["Env"]) | {"HOSTNAME": pod.name} | dict(environment or {})
        capabilities = [] if restricted else _DEFAULT_CAPABILITIES
        self._spec: dict[str, Any] = {
            "ociVersion": "1.0.2",
            "hostname": pod.name,
            "process": {
                "user": {"uid": USER, "gid": USER, "additionalGids": [USER]},
                "args": [*own, *rest],
                "env": [f"{name}={value}" for name, value in told.items()],
                "cwd": config["WorkingDir"],
                "capabilities": {"bounding": capabilities},
                "noNewPrivileges": restricted,
            },
            "root": {"path": "", "readonly": restricted},
            "mounts": [],
            "linux": {
                "namespaces": [
                    *({"type": kind} for kind in ("pid", "ipc", "uts", "mount")),
                    {"type": "network", "path": pod.namespace},
                ],
                "resources": {
                    "memory": {"limit": memory, "swap": memory},
                    "cpu": {"shares": int(cpus * 1024), "quota": int(cpus * 100_000), "period": 100_000},
                    "pids": {"limit": 4096},
                    "devices": [{"allow": False, "access": "rwm"}],
                },
                "maskedPaths": _MASKED,
                "readonlyPaths": _READ_ONLY,
            },
        }
        self._volumes = dict(volumes or {})
        self.name = f"slipway-test-{os.getpid()}-{next(_NUMBERS)}"
        self._open = ExitStack()

    def __enter__(self) -> "Container":
        with ExitStack() as opened:
            bundle = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="slipway-bundle-")))
            output("buildah", "from", "--pull-never", "--name", self.name, self._image)
            opened.callback(output, "buildah", "rm", self.name)
            self._spec["root"]["path"] = output("buildah", "mount", self.name)
            empty = {
                place: owned(bundle / place.replace("/", "_")) for place, folder in self._volumes.items() if not folder
            }
            self._spec["mounts"] = _mounts({**self._volumes, **empty})
            (bundle / "config.json").write_text(json.dumps(self._spec))
            self._log = bundle / "log"
            with self._log.open("w") as log:
                self._process = subprocess.Popen(
                    ["runc", "run", "--bundle", str(bundle), self.name],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                )
            opened.callback(self._kill)
            self._open = opened.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def runs(self) -> bool:
        """Return whether the container runs. Raise AssertionError with its log if it has ended."""
        assert self._process.poll() is None, f"ended with status {self._process.returncode}:\n{self.log}"
        return True

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command in the container, as `kubectl exec` does."""
        return subprocess.run(["runc", "exec", self.name, *command], capture_output=True, text=True, check=False)

    def status(self) -> dict[str, str]:
        """Return /proc/PID/status of the first process."""
        pid = json.loads(output("runc", "state", self.name))["pid"]
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}

    def memory_peak(self) -> int:
        """Return the most bytes that the container has had, with the cache of files."""
        found: int = json.loads(output("runc", "events", "--stats", self.name))["data"]["memory"]["usage"]["max"]
        return found

    def terminate(self, grace_s: float) -> int:
        """Send SIGTERM to the first process. Return its exit status. Raise TimeoutExpired after the grace."""
        output("runc", "kill", self.name, "TERM")
        return self._process.wait(grace_s)

    def _kill(self) -> None:
        if self._process.poll() is None:
            subprocess.run(["runc", "kill", self.name, "KILL"], capture_output=True, check=False)
            try:
                self._process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                self._process.send_signal(signal.SIGKILL)
                self._process.wait()


def owned(folder: Path) -> Path:
    """Return the folder, made and given to the user of the containers, as a kubelet gives a volume to `fsGroup`."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.chown(folder, USER, USER)
    return folder


def _mounts(volumes: Mapping[str, Path]) -> list[dict[str, Any]]:
    def mount(place: str, kind: str, *options: str, source: str = "") -> dict[str, Any]:
        return {"destination": place, "type": kind, "source": source or kind, "options": ["nosuid", *options]}

    made = [
        mount("/proc", "proc", "noexec", "nodev"),
        mount("/dev", "tmpfs", "mode=755", "size=64k"),
        mount("/dev/pts", "devpts", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"),
        mount("/dev/mqueue", "mqueue", "noexec", "nodev"),
        mount("/sys", "sysfs", "noexec", "nodev", "ro"),
        mount("/sys/fs/cgroup", "cgroup", "noexec", "nodev", "ro"),
    ]
    if "/dev/shm" not in volumes:
        made.append(mount("/dev/shm", "tmpfs", "noexec", "nodev", "mode=1777", "size=64m"))
    for place, folder in volumes.items():
        made.append({"destination": place, "type": "bind", "source": str(folder), "options": ["rbind", "rw"]})
    return made
