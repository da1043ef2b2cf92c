"""The memory of a server as a picture: who holds what on each device, what is evictable, and what would fit.

The figures are the server's own answer (GET /v2/slipway/memory). On each device the parts sum to the total: others, this
server, available. Within the server they sum to what it holds: its versions, and the server itself.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime

from django.db.models import OuterRef, Subquery

from dashboard.models import Model, Release, Server, Version
from dashboard.servers.client import ServerClient, ServerConnections
from dashboard.servers.messages import MemoryMap, MemoryNeeds, MemoryOfDevice, MemoryOfVersion
from dashboard.shared.choices import ModelStatus, VersionState
from dashboard.shared.exceptions import NotFound, Unavailable
from repository.config.backends import KINDS
from repository.config.model_config import parse
from repository.core.errors import InvalidConfig

DRAWN = 10  # versions with a piece of their own in a picture; the others are one piece
LOAD_FACTOR = (
    2  # a load holds about this many times the size of the files: docs/memory-and-scale.md has the measurement
)
HOST = "host"
ENSEMBLE = "ensemble"  # the format of versions that hold nothing themselves
MEASURED, GROWTH, FILES, LAST_LOAD, UNKNOWN = "measured", "growth", "files", "last_load", "unknown"

_DATA = {one.name for kind in KINDS.values() if kind.is_data for one in kind.formats}
_connections = ServerConnections()


@dataclass(frozen=True, slots=True)
class Part:
    """The bytes of one instance, or of several that share them."""

    instances: list[str]
    bytes: int


@dataclass(frozen=True, slots=True)
class Holder:
    """A version on a device, with the bytes of all its instances there. kept_by: "" if the server may free it to make room."""

    model: str
    version: int
    bytes: int
    basis: str  # measured, growth or files
    parts: list[Part]
    kept_by: str
    last_request: datetime | None

    @property
    def evictable(self) -> bool:
        return not self.kept_by


@dataclass(frozen=True, slots=True)
class Device:
    """One device in bytes. total = others + server + available, and server = itself + the holders. budget: 0 for none."""

    device: str
    where: str
    total: int
    others: int
    server: int
    itself: int
    available: int
    measured: bool
    budget: int
    budget_kept: int
    budget_evictable: int
    holders: list[Holder]  # the largest first

    @property
    def label(self) -> str:
        return "Host" if self.device == HOST else f"GPU {self.device.removeprefix('gpu:')}"

    @property
    def evictable(self) -> int:
        return sum(one.bytes for one in self.holders if one.evictable)


@dataclass(frozen=True, slots=True)
class Fit:
    """Whether versions that are not in memory would fit. answer: yes, after_eviction, no or unknown.

    needs: device -> bytes. basis: last_load, files (LOAD_FACTOR times their size) or unknown. left: the bytes that would be
    left on the scarcest device; below 0 they are missing. over_budget: the bytes over the budget of the models.
    """

    model: str
    versions: list[int]
    needs: dict[str, int]
    basis: str
    answer: str
    device: str = ""
    left: int | None = None
    evicts: int = 0
    over_budget: int = 0

    @property
    def short(self) -> int:
        return -(self.left or 0)


@dataclass(frozen=True, slots=True)
class Picture:
    devices: list[Device]
    fits: list[Fit] = field(default_factory=list)  # those that do not fit first, then the largest


def server_memory(server: Server) -> Picture:
    """Return the picture of a server's memory now. Raises a DashboardError if the server does not tell."""
    try:
        told = ServerClient(server, _connections).memory()
    except NotFound:
        raise Unavailable(f"server {server.name} does not tell who holds its memory: it is another program") from None
    devices = [_device(one, told) for one in told["devices"]]
    return Picture(
        devices, sorted(_fits(told, devices), key=lambda fit: (fit.answer != "no", -sum(fit.needs.values())))
    )


def _device(told: MemoryOfDevice, answer: MemoryMap) -> Device:
    holders = sorted(_holders(told["device"], answer["models"]), key=lambda one: (-one.bytes, one.model, one.version))
    server = told["server"]
    others = max(0, told["total"] - told["available"] - server)
    return Device(
        **{name: value for name, value in told.items() if name != "total"},  # type: ignore[arg-type]  # the same names
        total=others + server + told["available"],
        others=others,
        itself=max(0, server - sum(one.bytes for one in holders)),
        holders=holders,
    )


def _holders(device: str, rows: Iterable[MemoryOfVersion]) -> Iterator[Holder]:
    for row in rows:
        parts = [part for part in row["parts"] if part["device"] == device]
        if not parts:
            continue
        bases = {part["basis"] for part in parts}
        asked = row["last_inference_ms"]
        yield Holder(
            row["name"],
            int(row["version"]),
            sum(part["bytes"] for part in parts),
            next((basis for basis in (FILES, GROWTH) if basis in bases), MEASURED),
            [Part(part["instances"], part["bytes"]) for part in parts],
            row["kept_by"],
            datetime.fromtimestamp(asked / 1000, UTC) if asked else None,
        )


# -- what would fit ----------------------------------------------------------------------------------------------------
def _fits(told: MemoryMap, devices: list[Device]) -> Iterator[Fit]:
    """Yield a Fit for each model whose wanted versions are not all in memory."""
    rows = {(row["name"], int(row["version"])): row for row in told["models"]}
    gpus = [one.device for one in devices if one.device != HOST]
    for name, versions, text in _wanted(texts=bool(gpus)):
        missing = [number for number in versions if not _in_memory(rows.get((name, number)))]
        if not missing:
            continue
        known = [row["needs"] for number in missing if (row := rows.get((name, number))) is not None]
        if len(known) == len(missing) and all(known):
            needs, basis = _sum(known), LAST_LOAD
        elif all(versions[number][1] in _DATA for number in missing):
            size = LOAD_FACTOR * sum(versions[number][0] for number in missing)
            needs, basis = dict.fromkeys(_placed(text, gpus), size), FILES
        else:
            needs, basis = {}, UNKNOWN
        yield fit_of(name, missing, needs, basis, devices)


def _in_memory(row: MemoryOfVersion | None) -> bool:
    """Return whether a version is loaded. The version of an ensemble is loaded without parts: its steps hold the memory."""
    return row is not None and (bool(row["parts"]) or (row["state"] == ModelStatus.READY and not row["asleep"]))


def fit_of(model: str, versions: list[int], needs: dict[str, int], basis: str, devices: list[Device]) -> Fit:
    """Return whether these bytes fit, by the server's own rules: a load has to fit into what is available. Only where there
    is a budget, and the load exceeds it, does the server free evictable versions before."""
    by_name = {one.device: one for one in devices}
    worst: Fit | None = None
    for name, size in needs.items():
        if (one := by_name.get(name)) is None:
            continue
        room = one.budget - one.budget_kept - one.budget_evictable
        evicts = min(one.budget_evictable, max(0, size - room)) if one.budget else 0
        over = max(0, size - one.budget + one.budget_kept) if one.budget else 0
        left = one.available + min(evicts, one.evictable) - size
        answer = "no" if left < 0 else "after_eviction" if evicts else "yes"
        found = Fit(model, versions, needs, basis, answer, name, left, evicts, over)
        if worst is None or (worst.left or 0) > left:
            worst = found
    return worst or Fit(model, versions, needs, UNKNOWN, UNKNOWN)


def _sum(needs: Iterable[MemoryNeeds | None]) -> dict[str, int]:
    total: dict[str, int] = defaultdict(int)
    for one in filter(None, needs):
        total[HOST] += one["host_bytes"]
        for number, size in one["gpu_bytes"].items():
            total[f"gpu:{number}"] += size
    return {device: size for device, size in total.items() if size} or {HOST: 0}


def _wanted(*, texts: bool) -> Iterator[tuple[str, dict[int, tuple[int, str]], str]]:
    """Yield each model with the versions of its newest release: number -> (bytes of its files, format); and the release's text,
    or "" without `texts`."""
    newest = Release.objects.filter(model=OuterRef("pk")).order_by("-number").values("pk")[:1]
    models = list(Model.objects.annotate(newest=Subquery(newest)).values_list("pk", "name", "newest"))
    columns = ("pk", "versions", *(("text",) if texts else ()))
    rows = Release.objects.filter(pk__in=[row[2] for row in models]).values_list(*columns)
    releases = {pk: (numbers, "".join(text)) for pk, numbers, *text in rows}
    published: dict[int, dict[int, tuple[int, str]]] = defaultdict(dict)
    facts = Version.objects.filter(state=VersionState.PUBLISHED).exclude(format=ENSEMBLE)
    for model, number, size, kind in facts.values_list("model_id", "number", "size_bytes", "format"):
        published[model][number] = (size, kind)
    for pk, name, release in models:
        numbers, text = releases.get(release, ([], ""))
        versions = {number: published[pk][number] for number in numbers if number in published[pk]}
        if versions:
            yield name, versions, text


def _placed(text: str, gpus: list[str]) -> list[str]:
    """Return the devices of a configuration's instances. Without a choice, instances are on every GPU if there is one."""
    if not gpus:
        return [HOST]
    try:
        groups = parse(text).instance_group
    except InvalidConfig:
        return [HOST]
    placed = [f"gpu:{number}" for group in groups for number in group.gpus]
    if any(group.kind in (group.KIND_CPU, group.KIND_MODEL) for group in groups):
        placed.append(HOST)
    return list(dict.fromkeys(placed)) or gpus
