"""Finds what the default alerts about the machine are about: memory, disk, and what ends, such as tokens and certificates."""

import contextlib
import shlex
import ssl
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple, cast

from django.conf import settings
from django.urls import reverse

from dashboard.alerts.facts import Facts, Finding
from dashboard.metrics.samples import FINE, decode
from dashboard.models import ApiToken, MetricSample
from dashboard.shared.choices import Severity
from dashboard.templatetags.units import size
from repository.files.storage import MOST_RESERVE_BYTES, disk_usage, same_disk

SOON = timedelta(days=7)
_PAST = timedelta(days=7)  # what ended longer ago is not missed
_LEAST_MEMORY = 0.05  # of all, so much should be available
_MOST_GPU = 0.97
_CERTIFICATES = "certificate"  # a flag of the server whose name has this word names a certificate's file


class Memory(NamedTuple):
    """Bytes. available: what programs may still take without swapping."""

    available: int
    total: int


def memory_low(facts: Facts) -> Iterator[Finding]:
    if (found := machine_memory()) is not None and found.available < _LEAST_MEMORY * found.total:
        detail = f"{size(found.available)} of {size(found.total)} are available. A load, or a process, may be ended."
        here = next((one.name for one in facts.servers if one.bundled), "")
        page = reverse("server_memory_page", args=[here]) if here else reverse("servers")
        yield Finding("this machine", "This machine is short of memory", detail, page)
    rows = MetricSample.objects.filter(server__in=facts.servers, model_name="", version=0, resolution=FINE)
    newest = dict(rows.filter(at__gte=int(facts.timestamp) - 60).order_by("at").values_list("server", "data"))
    for server in facts.servers:
        process = decode(newest[server.pk]).process if server.pk in newest else None
        for number, gpu in enumerate(process["gpus"] if process else ()):
            used, total = gpu["memory_used"], gpu["memory_total"]
            if used is not None and total and used > _MOST_GPU * total:
                detail = f"{size(used)} of {size(total)} are in use."
                subject = f"{server.name} GPU {number}"
                page = reverse("server_memory_page", args=[server.name])
                yield Finding(subject, f"{subject} is short of memory", detail, page)


def machine_memory(root: Path = Path("/")) -> Memory | None:
    """Return the memory of this machine, or of its control group if that has less left; None if the kernel does not say.

    Source: Linux, Documentation/filesystems/proc.rst and admin-guide/cgroup-v2.rst.
    """
    fields = _fields(root / "proc/meminfo")
    found = None
    if "MemAvailable" in fields and fields.get("MemTotal"):
        found = Memory(fields["MemAvailable"] << 10, fields["MemTotal"] << 10)
    group = root / "sys/fs/cgroup"
    try:
        limit, used = int((group / "memory.max").read_text()), int((group / "memory.current").read_text())
    except (OSError, ValueError):  # there is no group, or no limit ("max")
        return found
    cache = _fields(group / "memory.stat").get("inactive_file", 0)
    within = Memory(max(0, limit - used + cache), limit)
    return within if found is None or within.available < found.available else found


def _fields(path: Path) -> dict[str, int]:
    try:
        rows = [line.replace(":", " ").split() for line in path.read_text().splitlines()]
        return {row[0]: int(row[1]) for row in rows if len(row) > 1}
    except (OSError, ValueError):
        return {}


def disk_full(_: Facts) -> Iterator[Finding]:
    yield from _disk_full(Path(settings.DATA_DIR), "data folder")
    with contextlib.suppress(OSError):
        if not same_disk(settings.DATA_DIR, settings.SHARED_DIR):
            yield from _disk_full(Path(settings.SHARED_DIR), "shared folder")


def _disk_full(folder: Path, subject: str) -> Iterator[Finding]:
    try:
        total, _used, free = disk_usage(folder)
    except OSError:
        return
    reserve = settings.DISK_RESERVE_BYTES
    kept = min(MOST_RESERVE_BYTES, total // 20) if reserve is None else reserve
    if free < 2 * kept:
        refused = free < kept
        detail = f"{size(free)} of {size(total)} are free, and {size(kept)} must stay free."
        detail += (
            " Uploads and publications are refused." if refused else " Soon, uploads and publications are refused."
        )
        severity = Severity.CRITICAL if refused else Severity.WARNING
        yield Finding(subject, f"The disk of the {subject} is nearly full", detail, reverse("models"), "", severity)


def ends_soon(facts: Facts) -> Iterator[Finding]:
    tokens = ApiToken.objects.filter(expires_at__lte=facts.now + SOON, expires_at__gte=facts.now - _PAST)
    for token in tokens.filter(user__is_active=True).select_related("user").order_by("expires_at"):
        assert token.expires_at is not None
        who, when = token.user.get_username(), _when(token.expires_at, facts.now)
        title = f"Token {token.name} of {who} {when}"
        yield Finding(f"token {token.pk}", title, "Its clients are refused after that.", reverse("settings"))
    for path in certificates(settings.SERVER_FLAGS):
        if (end := certificate_end(path)) is not None and end <= facts.now + SOON:
            title = f"Certificate {path.name} {_when(end, facts.now)}"
            yield Finding(
                f"certificate {path}"[:220], title, "Clients refuse the server after that.", reverse("servers")
            )


def certificates(flags: list[str]) -> list[Path]:
    """Return the certificates that flags of the inference server name."""
    found = [flag.removeprefix("--").partition("=") for text in flags for flag in shlex.split(text)]
    return [Path(value) for name, _, value in found if value and _CERTIFICATES in name]


def certificate_end(path: Path) -> datetime | None:
    """Return when the first certificate of a PEM file ends, or None if it cannot be read."""
    try:
        # Without a connection, only this function of CPython's own tests reads a certificate.
        decoded = cast("Mapping[str, Any]", ssl._ssl._test_decode_cert(str(path)))  # type: ignore[attr-defined]
        return datetime.fromtimestamp(ssl.cert_time_to_seconds(decoded["notAfter"]), UTC)
    except (OSError, ValueError, KeyError, ssl.SSLError):
        return None


def _when(end: datetime, now: datetime) -> str:
    return "has ended" if end <= now else f"ends on {end:%Y-%m-%d at %H:%M} UTC"
