"""The table of paths whose instructions are counted. To add a path, add a line."""

from pathlib import Path
from typing import NamedTuple

from benchmarks.instructions.models import BATCH

TORCHSERVE = (f"--ts-config={Path(__file__).with_name('config.properties')}", "--disable-token-auth")


class Case(NamedTuple):
    """One path. protocol: a key of clients.CLIENTS. at_once: the number of concurrent requests. flags: flags of the server."""

    name: str
    protocol: str
    model: str
    at_once: int = 1
    flags: tuple[str, ...] = ()


CASES = (
    Case("JSON", "json", "plain"),
    Case("binary", "binary", "plain"),
    Case("gRPC", "grpc", "plain"),
    Case(f"binary, {BATCH} at once", "binary", "plain", BATCH),
    Case(f"gRPC, {BATCH} at once", "grpc", "plain", BATCH),
    Case(f"JSON, batches of {BATCH}", "json", "batched", BATCH),
    Case(f"binary, batches of {BATCH}", "binary", "batched", BATCH),
    Case(f"gRPC, batches of {BATCH}", "grpc", "batched", BATCH),
    Case("Python model, binary", "binary", "python"),
    Case("Python model, gRPC", "grpc", "python"),
    Case(f"Python model, binary, {BATCH} at once", "binary", "python", BATCH),
    Case(f"Python model, binary, batches of {BATCH}", "binary", "python_batched", BATCH),
    Case("ensemble of a Python model, binary", "binary", "ensemble"),
    Case(f"frontend worker, binary, {BATCH} at once", "binary", "plain", BATCH, ("--frontend-workers=1",)),
    Case(f"frontend worker, gRPC, {BATCH} at once", "grpc", "plain", BATCH, ("--frontend-workers=1",)),
    Case("TorchServe handler, JSON", "prediction", "handler", 1, TORCHSERVE),
    Case(f"TorchServe handler, JSON, batches of {BATCH}", "prediction", "handler_batched", BATCH, TORCHSERVE),
)
