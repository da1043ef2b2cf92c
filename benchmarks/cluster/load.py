"""Sends inference requests without second tries, and counts what fails, by its reason: kept connections, new ones, and gRPC.

python load.py HOST MODEL BODY STOP [NAME=NUMBER...]: until the file STOP exists. After `requests` of them it makes STOP.enough.
`kept`, `new`, `grpc` and `watched` say how many connections of each kind there are; a watched one is a gRPC channel that asks
after `keepalive` seconds without a sign of life whether the server still lives. Each sends its next request `pause`
milliseconds after an answer.
"""

import collections
import functools
import json
import multiprocessing
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import grpc
from tritonclient.grpc import service_pb2 as pb

PATIENCE_S = 10.0
SEEN = multiprocessing.Value("q", 0)  # requests of all kinds
Ask = Callable[[], str]  # sends one request, and returns "" or the reason why it failed


def kept(host: str, model: str, body: str, keep: bool = True) -> Ask:
    """Requests over one connection, until the server says that it ends. If it breaks, the request has failed."""
    ending = "" if keep else "Connection: close\r\n"
    head = f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: {host}:8000\r\nContent-Length: {len(body)}\r\n{ending}\r\n"
    message = (head + body).encode()
    connection: socket.socket | None = None

    def ask() -> str:
        nonlocal connection
        at = "connecting"
        try:
            if connection is None:
                connection = socket.create_connection((host, 8000), PATIENCE_S)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            at = "sending"
            connection.sendall(message)
            at = "waiting"
            answer = read(connection)
            if answer.ends:
                connection.close()
                connection = None
            return "" if answer.status == "200" else f"{answer.status} {answer.body[:150].decode(errors='replace')}"
        except (OSError, ValueError) as error:  # a ValueError: what came is no such answer
            if connection is not None:
                connection.close()
                connection = None
            return f"{at}: {type(error).__name__} {error}"

    return ask


class Answer(NamedTuple):
    status: str
    ends: bool  # the server closes the connection after it
    body: bytes


def read(connection: socket.socket) -> Answer:
    """Read one whole answer. http.client does more, and would take twice the time of the processors that the servers need."""
    got = bytearray()
    while (end := got.find(b"\r\n\r\n")) < 0:
        got += some(connection)
    head = bytes(got[:end]).lower()
    size = int(head.partition(b"\r\ncontent-length:")[2].partition(b"\r\n")[0])
    while len(got) < end + 4 + size:
        got += some(connection)
    return Answer(head[9:12].decode(), b"\r\nconnection: close" in head, bytes(got[end + 4 :]))


def some(connection: socket.socket) -> bytes:
    if part := connection.recv(65536):
        return part
    raise ConnectionError("closed before the answer was whole")


def new(host: str, model: str, body: str) -> Ask:
    """Each request over a connection of its own."""
    return kept(host, model, body, keep=False)


def by_grpc(host: str, model: str, body: str, *more: tuple[str, int]) -> Ask:
    """Calls over one channel, which connects again when a server says that it ends. more: options of the channel."""
    request = pb.ModelInferRequest(model_name=model)
    for tensor in json.loads(body)["inputs"]:
        added = request.inputs.add(name=tensor["name"], datatype=tensor["datatype"], shape=tensor["shape"])
        added.contents.fp32_contents.extend(tensor["data"])
    channel = grpc.insecure_channel(f"{host}:8001", [("grpc.use_local_subchannel_pool", 1), *more])
    call, message = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer"), request.SerializeToString()

    def ask() -> str:
        try:
            call(message, timeout=PATIENCE_S)
            return ""
        except grpc.RpcError as error:
            return f"{error.code().name}: {error.details()[:150]}"

    return ask


def watched(keepalive_s: int, host: str, model: str, body: str) -> Ask:
    """The same with the options of docs/kubernetes.md, by which a channel leaves a server that hangs."""
    time_ms = keepalive_s * 1000
    options = {
        "keepalive_time_ms": time_ms,
        "keepalive_timeout_ms": time_ms // 2,
        "http2.ping_timeout_ms": time_ms // 2,
    }
    options["http2.max_pings_without_data"] = 0
    return by_grpc(host, model, body, *((f"grpc.{name}", number) for name, number in options.items()))


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
        while not stop.exists():
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
            if reason or pause_s:
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
    limits = {"kept": 6, "new": 1, "grpc": 1, "watched": 1, "keepalive": 10, "requests": 0, "pause": 5}
    for setting in settings:
        name, number = setting.split("=")
        limits[name] = int(number)
    kinds: dict[str, Callable[..., Ask]] = {
        "kept": kept,
        "new": new,
        "grpc": by_grpc,
        "watched": functools.partial(watched, limits["keepalive"]),
    }
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
