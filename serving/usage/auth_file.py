"""The tokens and quotas of --auth-file, which is JSON. It has the SHA-256 of each token, not the token:

    {"tokens": [{"name": "shop", "sha256": "<hex>", "models": ["digits"] or ["*"], "rights": ["infer"],
                 "expires_at": 1790000000 (unix seconds) or null,
                 "person": "ada", "groups": ["retail"]}],
     "quotas": [{"of": "token", "person" or "group", "name": "<hex of a token>", or a person or group,
                 "requests_per_day": 1000, "rows_per_day": 5000, "compute_seconds_per_day": 60.5,
                 "requests_per_second": 10}]}

"person", "groups" and "quotas" may be missing, and each limit may be missing or null. A changed file is read again.
"""

import hashlib
import logging
import weakref
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from repository.core.usage_log import Holder
from serving.core.errors import ServingError, invalid
from serving.resources.followed_file import follow

log = logging.getLogger(__name__)

RECHECK_S = 1.0  # pause between two checks of the auth file's mtime
MAX_KNOWN = 4096  # headers whose token is remembered, because hashing a token takes about a microsecond
KINDS = ("token", "person", "group")
LIMITS = ("requests_per_day", "rows_per_day", "compute_seconds_per_day", "requests_per_second")
MAX_LIMIT = 1e12


class Grant(NamedTuple):
    models: frozenset[str]
    rights: frozenset[str]
    expires_at: float
    digest: str
    holder: Holder


class QuotaLimits(NamedTuple):
    """An entry of "quotas". 0 means no limit."""

    of: str
    name: str
    requests_per_day: int
    rows_per_day: int
    compute_seconds_per_day: float
    requests_per_second: float


class Content(NamedTuple):
    """The whole file. grants: SHA-256 -> grant."""

    grants: dict[str, Grant]
    quotas: list[QuotaLimits]


EMPTY = Content({}, [])


def digest_of(header: str) -> str:
    """Return the SHA-256 of the token in an Authorization header, in hex; "" if the header has none."""
    scheme, _, token = header.partition(" ")
    if scheme.lower() != "bearer" or not token:
        return ""
    return hashlib.sha256(token.strip().encode()).hexdigest()


class AuthFile:
    """The content of an --auth-file. Any thread may read it. version: grows when the content changes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp: tuple[int, int, int] | None = None
        self._refused: tuple[int, int, int] | None = None  # the stamp of a malformed file, which is logged once
        self._known: dict[str, Grant] = {}  # by the header
        self.content = EMPTY
        self.version = 0
        self._refresh(strict=True)
        follow("auth", self._look_again, RECHECK_S)

    @classmethod
    def of(cls, path: Path) -> "AuthFile":
        """Return the process's object for a file, so that all frontends and the ledger know the same tokens."""
        found = _SHARED.get(path)
        if found is None:
            found = _SHARED[path] = cls(path)
        else:
            found._refresh(strict=True)
        return found

    def grant(self, header: str) -> Grant | None:
        """Return the grant of the token in an Authorization header, or None if the token is unknown."""
        known = self._known
        found = known.get(header)
        if found is None:
            found = self.content.grants.get(digest_of(header))
            if found is not None and len(known) < MAX_KNOWN:
                known[header] = found
        return found

    def _look_again(self) -> None:
        self._refresh(strict=False)

    def _refresh(self, strict: bool) -> None:
        """Read the file again if it has changed. A missing file grants nothing. A malformed file changes nothing.
        strict: whether to raise for a missing or malformed file, as at the start."""
        stamp: tuple[int, int, int] | None = None
        try:
            stat = self._path.stat()
            stamp = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
            if stamp != self._stamp:
                self._replace(_parse(self._path.read_bytes()))
                self._stamp = stamp
        except OSError as error:
            if strict:
                raise invalid(f"--auth-file cannot be read: {error.strerror}") from None
            if self._stamp is not None:
                log.error("the auth file is gone: no token is accepted until it is back")
                self._replace(EMPTY)
            self._stamp = None
        except ServingError as error:
            if strict:
                raise
            if stamp != self._refused:
                log.error("the changed auth file is not used: %s", error.message)
            self._refused = stamp

    def _replace(self, content: Content) -> None:
        self.content = content
        self._known = {}  # after the content, so that no other thread remembers an old grant
        self.version += 1


_SHARED: "weakref.WeakValueDictionary[Path, AuthFile]" = weakref.WeakValueDictionary()


def _parse(content: bytes) -> Content:
    grants = {}
    try:
        whole = orjson.loads(content)
        for entry in whole["tokens"]:
            expires_at = entry.get("expires_at")
            digest = entry["sha256"].lower()
            grants[digest] = Grant(
                frozenset(entry["models"]),
                frozenset(entry["rights"]),
                float("inf") if expires_at is None else float(expires_at),
                digest,
                Holder(
                    str(entry.get("name", "")), str(entry.get("person", "")), tuple(map(str, entry.get("groups", ())))
                ),
            )
        quotas = whole.get("quotas", [])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise invalid(f"--auth-file: expected an object with a list of tokens, got {type(error).__name__}") from None
    if not isinstance(quotas, list):
        raise invalid("--auth-file: expected a list of quotas")
    return Content(grants, [_quota(number, entry) for number, entry in enumerate(quotas, 1)])


def _quota(number: int, entry: Any) -> QuotaLimits:
    where = f"--auth-file: quota {number}"
    if not isinstance(entry, dict):
        raise invalid(f"{where}: expected an object")
    unknown = sorted(set(entry) - {"of", "name", *LIMITS})
    if unknown:
        raise invalid(f"{where}: expected 'of', 'name' and limits ({', '.join(LIMITS)}), got '{unknown[0]}'")
    of, name = entry.get("of"), entry.get("name")
    if of not in KINDS:
        raise invalid(f"{where}: expected 'of' to be one of {', '.join(KINDS)}")
    if not isinstance(name, str) or not name:
        raise invalid(f"{where}: expected a 'name'")
    values = {}
    for limit in LIMITS:
        value = entry.get(limit)
        if value is None:
            value = 0
        elif type(value) not in (int, float) or not 0 < value <= MAX_LIMIT:
            raise invalid(f"{where}: expected '{limit}' to be a number above 0 and of at most {MAX_LIMIT:g}, or null")
        elif limit in LIMITS[:2] and value != int(value):
            raise invalid(f"{where}: expected '{limit}' to be a whole number")
        values[limit] = value
    return QuotaLimits(
        of,
        name.lower() if of == "token" else name,
        int(values["requests_per_day"]),
        int(values["rows_per_day"]),
        float(values["compute_seconds_per_day"]),
        float(values["requests_per_second"]),
    )
