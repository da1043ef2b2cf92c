"""Counts the steps of one request through the code: calls, files, and hops from one file into another.

    python -m benchmarks.walks [dashboard] [serving]

A call counts if it enters a function of repository/, serving/ or dashboard/. It is a hop if the innermost such caller on the
stack is in another file, and a return if the called file was visited before. A parse reads a text in protobuf's text format.
Database statements are counted separately, because each one calls a function of dashboard/shared/changes.py. Before the counted
request, another one of the same kind has imported all modules and filled all caches.

The server runs some functions at intervals, whether a request is under way or not (PERIODIC). Their calls are left out, because
their number depends on the duration of the walk. A timer that a request starts, such as that of the access log, counts.
"""

import argparse
import json
import os
import runpy
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from types import CodeType, FrameType, TracebackType
from typing import Any

from tests.support.serving_process import ServerProcess, wait_until

ROOT = Path(__file__).resolve().parents[1]
OWN = tuple(f"{ROOT / package}{os.sep}" for package in ("repository", "serving", "dashboard"))
STATEMENTS = str(ROOT / "dashboard" / "shared" / "changes.py")
PARSER = f"protobuf{os.sep}text_format.py"
PERIODIC = {
    (str(ROOT / "serving" / module), "_run")
    for module in ("torchserve/telemetry/metrics_log.py", "models/residency.py", "resources/child_watch.py")
}
SETTLED_S = 0.3  # the time after an answer in which the server finishes its work for that request
REPORT = "WALK_REPORT"  # the variable that names the file for the counts of a server


@dataclass(frozen=True, slots=True)
class Count:
    """The counts of a walk. pairs: (from file, to file, number of hops)."""

    calls: int
    files: int
    returns: int
    parses: int
    statements: int
    pairs: list[tuple[str, str, int]]

    @property
    def hops(self) -> int:
        return sum(hops for _, _, hops in self.pairs)

    def row(self) -> str:
        """Return the counts as the cells of a row of a table."""
        return " | ".join(map(str, (self.calls, self.files, self.hops, self.returns, self.parses, self.statements)))


class Walk:
    """Counts all calls during the block, in this thread and in threads that start during the block."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Start the counts again from zero."""
        self._calls = self._returns = self._parses = self._statements = 0
        self._visited: set[str] = set()
        self._hops: Counter[tuple[str, str]] = Counter()  # (from file, to file) -> number of hops
        self._counts = True

    def pause(self) -> None:
        self._counts = False

    def __enter__(self) -> "Walk":
        threading.setprofile(self.seen)
        sys.setprofile(self.seen)
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    @property
    def count(self) -> Count:
        pairs = [(*pair, hops) for pair, hops in self._hops.most_common()]
        return Count(self._calls, len(self._visited), self._returns, self._parses, self._statements, pairs)

    def seen(self, frame: FrameType, event: str, _: object) -> None:
        """Count one event. sys.setprofile calls this function."""
        if event != "call" or not self._counts:
            return
        code = frame.f_code
        if code.co_name == "Parse" and code.co_filename.endswith(PARSER):
            self._parses += 1
        if code.co_filename == STATEMENTS:
            self._statements += code.co_name == "_note"
            return
        if not code.co_filename.startswith(OWN) or _resumes(frame, code):
            return
        if _is_periodic(frame):
            return
        self._calls += 1
        caller = _own_caller(frame)
        if caller not in ("", code.co_filename):
            self._hops[caller, code.co_filename] += 1
            self._returns += code.co_filename in self._visited
        self._visited.add(code.co_filename)


def _resumes(frame: FrameType, code: CodeType) -> bool:
    """Return whether the event continues a generator or coroutine: the argument of RESUME is 0 only at its start."""
    return bool(code.co_code[frame.f_lasti + 1] & 3)


def _is_periodic(frame: FrameType | None) -> bool:
    while frame is not None and (frame.f_code.co_filename, frame.f_code.co_name) not in PERIODIC:
        frame = frame.f_back
    return frame is not None


def _own_caller(frame: FrameType) -> str:
    below = frame.f_back
    while below is not None and not below.f_code.co_filename.startswith(OWN):
        below = below.f_back
    return below.f_code.co_filename if below is not None else ""


# -- the dashboard ---------------------------------------------------------------------------------------------------------
def dashboard_walks() -> dict[str, Count]:
    """Count publications and a step of a rollout, in a separate data folder."""
    with tempfile.TemporaryDirectory(prefix="slipway-walks-") as folder:
        os.environ.update(SLIPWAY_DATA=folder, DJANGO_SETTINGS_MODULE="dashboard.settings")
        import django

        django.setup()
        from django.core.management import call_command

        from dashboard.access.authorisation import SYSTEM
        from dashboard.servers.services import server_ensure_local

        call_command("migrate", verbosity=0)
        server_ensure_local()
        published("before", SYSTEM)
        stepped("before", SYSTEM)
        walks = published("model", SYSTEM)
        return {**walks, "a step of a rollout": stepped("model", SYSTEM)}


def published(name: str, actor: Any) -> dict[str, Count]:
    """Publish a new model and a second version of the model, as the page does. Return the counts of both."""
    from dashboard.jobs.runner import job_run
    from dashboard.uploads.publication import upload_publish
    from dashboard.uploads.review import upload_review
    from dashboard.uploads.services import upload_complete, upload_create, upload_receive_chunk
    from tests.dashboard.conftest import relu_bytes

    content, walks = relu_bytes(), dict[str, Count]()
    for number in (1, 2):
        with Walk() as received:
            files = [{"path": "model.onnx", "size": len(content)}]
            upload = upload_create(actor=actor, model_name=name, files=files)
            upload_receive_chunk(upload=upload, number=0, offset=0, chunk=content, actor=actor)
            job_run(job_id=upload_complete(upload=upload, actor=actor).pk)
        upload.refresh_from_db()
        review = upload_review(upload=upload)
        with Walk() as walk:
            job = upload_publish(
                upload=upload,
                actor=actor,
                document=review.document,
                base_release=review.base_release,
                make_live=number == 1,
            )
        assert job.state == "succeeded", job.error
        walks |= {f"version {number} uploaded": received.count, f"version {number} published": walk.count}
    return walks


def stepped(name: str, actor: Any) -> Count:
    """Take the next step of a rollout of the second version. Return its counts."""
    from dashboard.models import Model
    from dashboard.rollouts.services import rollout_advance, rollout_start
    from tests.dashboard.conftest import serve

    model = Model.objects.get(name=name)
    release = serve(model)
    rollout = rollout_start(model=model, actor=actor, candidate=next(n for n in (2, 1) if n not in release.versions))
    serve(model)
    with Walk() as walk:
        rollout_advance(rollout=rollout, actor=actor)
    return walk.count


# -- the inference server --------------------------------------------------------------------------------------------------
def server_walks() -> dict[str, Count]:
    """Count the steps of an infer request over each protocol, and of registering an archive."""
    from benchmarks.instructions import clients
    from tests.support import torchserve_archives
    from tests.support.model_factory import onnx_add_sub
    from tests.support.torchserve_server import TorchServeServer

    with tempfile.TemporaryDirectory(prefix="slipway-walks-") as given:
        folder = Path(given)
        onnx_add_sub(folder / "models", "plain", "INT32", [clients.INPUTS["plain"]["INPUT0"].size])
        for name in ("first", "second"):
            torchserve_archives.archive(folder / "store" / f"{name}.mar")
        record = folder / "walk.json"
        program = (sys.executable, "-m", "benchmarks.walks", "--server")
        with ServerProcess(folder / "models", program=program, environment={REPORT: str(record)}) as server:
            http = clients.binary_client(server.http, "plain", 1)
            grpc = clients.grpc_client(server.grpc, "plain", 1)
            walks = {
                "infer over HTTP": _counted(server, record, http.ask),
                "infer over gRPC": _counted(server, record, grpc.ask),
            }
            http.close()
            grpc.close()
        with TorchServeServer(folder, program=program, environment={REPORT: str(record)}) as torchserve:

            def register(name: str) -> None:
                answer = torchserve.manage("POST", f"/models?url={name}.mar&initial_workers=1&synchronous=true")
                assert answer.status == 200, answer

            register("first")
            return {
                **walks,
                "an archive registered": _counted(torchserve, record, lambda: register("second"), before=0),
            }


def _counted(server: ServerProcess, record: Path, ask: Callable[[], None], before: int = 3) -> Count:
    """Return the counts of one request on a server, after `before` requests of the same kind."""
    for _ in range(before):
        ask()
    time.sleep(SETTLED_S)
    assert server.process is not None
    server.process.send_signal(signal.SIGUSR1)
    wait_until(lambda: record.exists() and not record.read_text(), what="the walk's beginning")
    ask()
    time.sleep(SETTLED_S)
    server.process.send_signal(signal.SIGUSR1)
    count = Count(**json.loads(wait_until(record.read_text, what="the walk's end")))
    record.unlink()
    return count


def serve() -> None:
    """Run the server. SIGUSR1 starts a walk, the next SIGUSR1 writes its counts."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    walk = Walk()
    threading.Thread(target=_tell, args=(walk, Path(os.environ[REPORT])), daemon=True).start()
    with walk:
        walk.pause()
        sys.argv[:] = ["serving", *sys.argv[2:]]
        runpy.run_module("serving", run_name="__main__", alter_sys=True)


def _tell(walk: Walk, report: Path) -> None:
    while True:
        signal.sigwait({signal.SIGUSR1})
        walk.begin()
        report.write_text("")
        signal.sigwait({signal.SIGUSR1})
        walk.pause()
        report.write_text(json.dumps(asdict(walk.count)))


def main() -> None:
    if sys.argv[1:2] == ["--server"]:
        serve()
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], default=[], help="both without")
    parser.add_argument("--hops", type=int, default=0, help="also list the pairs of files with most hops, so many")
    given = parser.parse_args()
    print(
        "| walk | calls | files | hops | returns | parses | statements |\n| --- | --- | --- | --- | --- | --- | --- |"
    )
    for part in given.parts or PARTS:
        for name, walk in PARTS[part]().items():
            print(f"| {name} | {walk.row()} |", flush=True)
            for caller, called, hops in walk.pairs[: given.hops]:
                print(f"    {hops:4} {os.path.relpath(caller, ROOT)} -> {os.path.relpath(called, ROOT)}")


PARTS: dict[str, Callable[[], dict[str, Count]]] = {"dashboard": dashboard_walks, "serving": server_walks}

if __name__ == "__main__":
    main()
