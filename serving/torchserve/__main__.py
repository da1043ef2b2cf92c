"""`python -m serving.torchserve`: TorchServe's own command line, for a server that listens only on TorchServe's ports.

--start translates the flags and runs `python -m serving` in the background, where --stop ends it. With --foreground, the server
replaces this process. Source: docs/server.md of TorchServe 0.12.
"""

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from repository.torchserve.properties import InvalidProperties, read
from repository.torchserve.snapshot_files import last_snapshot

TORCHSERVE = "0.12.0"  # the version of TorchServe with this command line, these APIs and these archives
START_S = 60.0  # how long a server in the background may take until it listens
STOP_S = 60.0
LOG_BYTES = 100 << 20  # the size of ts_log.log at which a new file begins
ROOT = Path(__file__).resolve().parents[2]


def main(arguments: Sequence[str] | None = None) -> int:
    options = build_parser().parse_args(arguments)
    if options.version:
        from serving.server.inference_server import running_version

        print(f"TorchServe Version is {TORCHSERVE}, served by Slipway {running_version()}")
        return 0
    running = running_server()
    if options.stop:
        return stop(running)
    if running is not None:
        print("TorchServe is already running, please use torchserve --stop to stop TorchServe.")
        return 1
    try:
        flags = server_flags(options, os.environ)
    except InvalidProperties as error:
        print(error)
        return 1
    return start_in_place(flags) if options.foreground else start_in_background(flags)


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="torchserve", description="Slipway's inference server, with TorchServe's flags.", allow_abbrev=False
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("-v", "--version", action="store_true", help="print the version")
    what.add_argument(
        "--start", action="store_true", help="start the server, which is what it does without this flag too"
    )
    what.add_argument("--stop", action="store_true", help="stop the server that runs")
    parser.add_argument("--ts-config", type=Path, help="config.properties")
    parser.add_argument("--model-store", type=Path, help="folder of the archives of models")
    parser.add_argument(
        "--workflow-store", type=Path, help="folder of the archives of workflows; by default that of models"
    )
    parser.add_argument(
        "--models", nargs="+", metavar="[NAME=]ARCHIVE", help="what is registered at start; all for all of them"
    )
    parser.add_argument("--log-config", type=Path, help="accepted without an effect: there is no Log4j")
    parser.add_argument("--cpp-log-config", type=Path, help="accepted without an effect: there is no C++ backend")
    parser.add_argument("--plugins-path", "--ppath", help="accepted without an effect: there are no Java plugins")
    parser.add_argument("--foreground", action="store_true", help="run in the foreground")
    parser.add_argument("--no-config-snapshots", "--ncs", action="store_true", help="neither read nor write snapshots")
    parser.add_argument("--disable-token-auth", "--dt", action="store_true", help="take requests without a token")
    parser.add_argument("--enable-model-api", action="store_true", help="let clients register and unregister models")
    return parser


# -- flags of the server --------------------------------------------------------------------------------------------
def server_flags(options: argparse.Namespace, environment: Mapping[str, str]) -> list[str]:
    """Return the flags of `python -m serving`. Raises InvalidProperties for flags with which TorchServe would not start."""
    config = config_file(options, environment)
    for flag, path in (("--log-config", options.log_config), ("--cpp-log-config", options.cpp_log_config)):
        if path is not None and not path.is_file():
            raise InvalidProperties(f"{flag} file not found: {path}")
    for flag, path in (("--model-store", options.model_store), ("--workflow-store", options.workflow_store)):
        if path is not None and not path.is_dir():
            raise InvalidProperties(f"{flag} directory not found: {path}")
    properties = read(config, environment).values if config is not None else {}
    if options.model_store is None and not properties.get("model_store"):
        raise InvalidProperties("Missing mandatory parameter --model-store")
    flags = ["--torchserve", "--allow-http=false", "--allow-grpc=false", "--allow-metrics=false"]
    for name, value in (
        ("--ts-config", config),
        ("--model-store", options.model_store),
        ("--workflow-store", options.workflow_store),
        ("--log-config", options.log_config),
        ("--cpp-log-config", options.cpp_log_config),
        ("--plugins-path", options.plugins_path),
    ):
        flags += [] if value is None else [f"{name}={value}"]
    for flag, wanted in (
        ("--no-config-snapshots", options.no_config_snapshots),
        ("--disable-token-auth", options.disable_token_auth),
        ("--enable-model-api", options.enable_model_api),
    ):
        flags += [flag] if wanted else []
    return flags + (["--models", *options.models] if options.models else [])


def config_file(options: argparse.Namespace, environment: Mapping[str, str]) -> Path | None:
    """Return the file of properties: the named file, or the last snapshot, or config.properties in the working folder."""
    named = Path(environment["TS_CONFIG_FILE"]) if "TS_CONFIG_FILE" in environment else options.ts_config
    if named is not None:
        if not named.is_file():
            raise InvalidProperties(f"--ts-config file not found: {named}")
        return Path(named)
    if not options.no_config_snapshots:
        snapshot = last_snapshot(log_location(environment), print)
        if snapshot is not None:
            return snapshot
    here = Path("config.properties")
    return here if here.is_file() else None


def log_location(environment: Mapping[str, str]) -> Path:
    return Path(environment.get("LOG_LOCATION") or "logs")


# -- starting ----------------------------------------------------------------------------------------------------------
def start_in_place(flags: list[str]) -> int:
    """Replace this process by the server."""
    logging = log_flags()
    sys.stdout.flush()
    remember(os.getpid())
    os.execve(sys.executable, command([*logging, *flags]), variables())


def start_in_background(flags: list[str]) -> int:
    """Start the server, and wait until it listens.

    As in TorchServe, the server's log goes to a file and to this command's output, which a container collects as its log.
    """
    logging = log_flags()
    sys.stdout.flush()
    with tempfile.TemporaryDirectory(prefix="slipway-start-") as temporary:
        addresses = Path(temporary, "addresses.json")
        server = subprocess.Popen(
            command([f"--address-file={addresses}", *logging, *flags]),
            stdin=subprocess.DEVNULL,
            stderr=subprocess.STDOUT,
            env=variables(),
            start_new_session=True,
        )
        remember(server.pid)
        deadline = time.monotonic() + START_S
        while not addresses.exists() and time.monotonic() < deadline:
            if server.poll() is not None:
                forget()
                print("TorchServe could not be started: the lines before this one say why.")
                return 1
            time.sleep(0.05)
        listening = json.loads(addresses.read_text()) if addresses.exists() else {}
    shown = ", ".join(str(one) for name, one in listening.items() if name != "pid")
    print(
        f"TorchServe has started and listens on {shown}."
        if shown
        else "TorchServe starts: its log says how it goes on."
    )
    return 0


def log_flags() -> list[str]:
    """Return the flags that also write the log into a file, as TorchServe's configuration of Log4j does."""
    log = log_location(os.environ) / "ts_log.log"
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        log.open("ab").close()
    except OSError as error:
        print(
            f"{log} cannot be written ({error.strerror}): its log goes to this output alone. LOG_LOCATION names a folder."
        )
        return ["--torchserve-logs=false"]
    return [f"--log-file={log}", "--log-console", "--log-format=TorchServe", f"--log-file-max-bytes={LOG_BYTES}"]


def command(flags: list[str]) -> list[str]:
    return [sys.executable, "-m", "serving", *flags]


def variables() -> dict[str, str]:
    """Return the environment for the server, in which Python finds this package from any working folder."""
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


# -- the running server ------------------------------------------------------------------------------------------------
def pid_file() -> Path:
    return Path(tempfile.gettempdir(), f".slipway-torchserve-{os.getuid()}.pid")


def remember(pid: int) -> None:
    """Write the process id of the server into a file for --stop. If that fails, print the reason."""
    try:
        temporary = pid_file().with_suffix(f".{os.getpid()}")
        temporary.unlink(missing_ok=True)
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(f"{pid} {_started(pid)}\n")
        try:
            temporary.replace(pid_file())
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        print(f"--stop will not find this server, end it by its process id {pid}: {error.strerror}: {error.filename}")
        sys.stdout.flush()


def forget() -> None:
    with contextlib.suppress(OSError):
        pid_file().unlink()


def running_server() -> int | None:
    """Return the process id of the running server, or None. A later process with the same number does not count."""
    try:
        with pid_file().open() as file:
            if os.fstat(file.fileno()).st_uid != os.getuid():
                return None
            pid, started = file.read(100).split()
        if _started(int(pid)) == started:
            return int(pid)
    except (OSError, ValueError):
        pass
    return None


def stop(running: int | None) -> int:
    """End the server, and wait until it has finished its requests."""
    if running is None:
        forget()
        print("TorchServe is not currently running.")
        return 0
    try:
        process = os.pidfd_open(running)
    except ProcessLookupError:
        print("TorchServe already stopped.")
        return 0
    try:
        signal.pidfd_send_signal(process, signal.SIGTERM)
        deadline = time.monotonic() + STOP_S
        while running_server() is not None and time.monotonic() < deadline:
            time.sleep(0.05)
    except ProcessLookupError:
        pass
    finally:
        os.close(process)
    if running_server() is not None:
        print("Stopping TorchServe took too long.")
        return 1
    forget()
    print("TorchServe has stopped.")
    return 0


def _started(pid: int) -> str:
    """Return when a process started, in the kernel's ticks, or "" after its end. The start distinguishes a process from a later
    process with the same number."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return fields[19] if fields[0] != "Z" else ""


if __name__ == "__main__":
    sys.exit(main())
