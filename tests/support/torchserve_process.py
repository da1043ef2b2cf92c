"""The real TorchServe, or Slipway in its place: the same command line and config.properties, on free ports."""

import contextlib
import os
import shutil
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import pytest

from benchmarks.servers.environments import made, variables_of
from benchmarks.servers.process import process
from tests.support.ports import free_ports
from tests.support.serving_process import ROOT, descendants

REAL, OURS = "the real TorchServe", "Slipway"
NEEDS_JAVA = pytest.mark.skipif(
    shutil.which("java") is None, reason="TorchServe needs Java: apt install default-jre-headless"
)
LISTENERS = ("inference_address", "management_address", "metrics_address")
GRPC_PORTS = ("grpc_inference_port", "grpc_management_port")
QUIET_LOG = """\
<Configuration><Appenders><Console name="console"><PatternLayout pattern="%p %c - %m%n"/></Console></Appenders>
<Loggers><Root level="warn"><AppenderRef ref="console"/></Root></Loggers></Configuration>
"""


@dataclass(frozen=True)
class Server:
    """A running TorchServe or Slipway. Its listeners are "host:port"."""

    name: str
    folder: Path
    pid: int
    inference: str
    management: str
    metrics: str
    grpc_inference: str
    grpc_management: str


@contextlib.contextmanager
def torchserve(
    name: str,
    folder: Path,
    properties: Sequence[str],
    arguments: Sequence[str] = (),
    variables: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[Server]:
    """Run a server in `folder` during the block, with its addresses and the lines `properties` in its config.properties."""
    folder.mkdir(parents=True)
    ports = free_ports(5)
    lines = [f"{key}=http://127.0.0.1:{port}" for key, port in zip(LISTENERS, ports, strict=False)]
    lines += [f"{key}={port}" for key, port in zip(GRPC_PORTS, ports[3:], strict=True)]
    (folder / "config.properties").write_text("\n".join([*lines, *properties]) + "\n")
    (folder / "log.xml").write_text(QUIET_LOG)
    (folder / "temporary").mkdir()
    environment = variables_of(made("torchserve")) | {"TMPDIR": str(folder / "temporary"), "HOME": str(folder)}
    command = ["torchserve"]
    if name == OURS:
        command = [sys.executable, "-m", "serving.torchserve"]
        environment |= {"PYTHONPATH": str(ROOT)}
    flags = ["--start", "--foreground", "--ncs", "--ts-config", "config.properties", "--log-config", "log.xml"]
    addresses = [f"127.0.0.1:{port}" for port in ports]
    with process(
        [*command, *flags, *arguments], {**environment, **variables}, f"http://{addresses[2]}/metrics", cwd=folder
    ) as pid:
        yield Server(name, folder, pid, *addresses)
        if name == REAL:  # TorchServe takes long to end, and leaves no results that are needed
            for one in descendants(pid):
                os.kill(one, signal.SIGKILL)
