"""Sends inference requests without second tries, and counts what fails, by its reason: kept connections, new ones, and gRPC.

python load.py HOST MODEL BODY STOP [NAME=NUMBER...] [requests=N]: until the file STOP exists and N requests were sent. At N it
makes STOP.enough. `kept`, `new` and `grpc` say how many connections of each kind there are. Each sends its next request
`pause` milliseconds after an answer.
"""

import collections
import http.client
import json
import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import grpc
from tritonclient.grpc import service_pb2 as pb

PATIENCE_S = 10.0
SEEN = multiprocessing.Value("q", 0)  # requests of all kinds
Ask = Callable[[], str]  # sends one request, and returns "" or the reason why it failed


def kept(host: str, model: str, body: str, keep: bool = True) -> Ask:
    """Requests over one connection, until the server says that it ends. If it breaks, the request has failed."""
    connection = http.client.HTTPConnection(host, 8000, timeout=PATIENCE_S)
    headers = {} if keep else {"Connection": "close"}

    def ask() -> str:
        at = "connecting"
        try:
            if connection.sock is None:
                connection.connect()
            at = "sending"
            connection.request("POST", f"/v2/models/{model}/infer", body, headers)
            at = "waiting"
            response = connection.getresponse()
            said = response.read().decode(errors="replace")
            if not keep:
                connection.close()
            return "" if response.status == 200 else f"{response.status} {said[:150]}"
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            return f"{at}: {type(error).__name__} {error}"

    return ask


def new(host: str, model: str, body: str) -> Ask:
    """Each request over a connection of its own."""
    return kept(host, model, body, keep=False)


def by_grpc(host: str, model: str, body: str) -> Ask:
    """Calls over one channel, which connects again when a server says that it ends."""
    request = pb.ModelInferRequest(model_name=model)
    for tensor in json.loads(body)["inputs"]:
        added = request.inputs.add(name=tensor["name"], datatype=tensor["datatype"], shape=tensor["shape"])
        added.contents.fp32_contents.extend(tensor["data"])
    channel = grpc.insecure_channel(f"{host}:8001", [("grpc.use_local_subchannel_pool", 1)])
    call, message = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer"), request.SerializeToString()

    def ask() -> str:
        try:
            call(message, timeout=PATIENCE_S)
            return ""
        except grpc.RpcError as error:
            return f"{error.code().name}: {error.details()[:150]}"

    return ask


def send(
    kind: str, ask: Callable[..., Ask], connections: int, asked: list[str], stop: Path, limits: dict[str, int]
) -> None:
    """Send from a process of its own, and print what came of it."""
    failed: dict[str, list[float]] = collections.defaultdict(list)
    sent, slowest, pause_s, began = 0, 0.0, limits["pause"] / 1000, time.monotonic()
    lock = threading.Lock()

    def one() -> None:
        nonlocal sent, slowest
        asking = ask(*asked)
        while SEEN.value < limits["requests"] or not stop.exists():
            started = time.monotonic()
            reason = asking()
            ended = time.monotonic()
            with lock:
                sent += 1
                slowest = max(slowest, ended - started)
                if reason:
                    failed[reason].append(ended - began)
                if sent % 100 == 0:
                    with SEEN.get_lock():
                        SEEN.value += 100
            time.sleep(0.1 if reason else pause_s)

    threads = [threading.Thread(target=one) for _ in range(connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines = [
        f"    {sent:8} {kind}, {sum(map(len, failed.values()))} failed, {sent / (time.monotonic() - began):.0f} a second, "
        f"the slowest after {slowest:.2f} s"
    ]
    for reason, times in failed.items():
        lines.append(f"      {len(times):6} {reason} (from second {times[0]:.1f} to {times[-1]:.1f})")
    print("\n".join(lines), flush=True)


def main(host: str, model: str, body: str, stop: str, *settings: str) -> None:
    limits = {"kept": 6, "new": 1, "grpc": 1, "requests": 0, "pause": 5}
    for setting in settings:
        name, number = setting.split("=")
        limits[name] = int(number)
    kinds: dict[str, Callable[..., Ask]] = {"kept": kept, "new": new, "grpc": by_grpc}
    began, load = time.monotonic(), os.getloadavg()[0]
    # A process for each kind, made before gRPC starts threads.
    processes = [
        multiprocessing.Process(target=send, args=(kind, ask, limits[kind], [host, model, body], Path(stop), limits))
        for kind, ask in kinds.items()
        if limits[kind]
    ]
    for process in processes:
        process.start()
    while SEEN.value < limits["requests"] and any(process.is_alive() for process in processes):
        time.sleep(0.5)
    Path(f"{stop}.enough").touch()
    for process in processes:
        process.join()
    print(
        f"    in {time.monotonic() - began:.0f} s; load of the machine {load:.0f} before, {os.getloadavg()[0]:.0f} after"
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
