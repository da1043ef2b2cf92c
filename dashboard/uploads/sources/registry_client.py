"""A client of OCI registries, which an administrator allows, as `docker`, `oras` and `skopeo` are clients of them.

SLIPWAY_REGISTRY_AUTH_FILE names a file with the credentials in Docker's form, as `oras login --registry-config FILE` writes it.
Only the registry gets them, and the server that it names for its tokens, which must be allowed, too.
Source: OCI Distribution Specification 1.1; Docker Registry, "Token Authentication Specification" and "config.json".
"""

import base64
import hashlib
import json
import re
import time
import urllib.parse
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from django.conf import settings

from dashboard.shared.exceptions import Conflict, Forbidden, Invalid, NotFound, TooLarge, Unavailable
from dashboard.uploads.sources.http_client import Answer, Location, answer_as_it_is, answer_to, parse_location

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
MANIFESTS = (
    MANIFEST,
    "application/vnd.docker.distribution.manifest.v2+json",
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
FILE_PATH = "org.cncf.model.filepath"  # of ModelPack, the model specification of the CNCF
TITLE = "org.opencontainers.image.title"  # of OCI's image specification; the name that `oras pull` gives a file
_MOST_JSON = 4 << 20  # what registries take at least as a manifest
_TOKEN_S = 30.0  # for so long a token is used; registries give them for 60 s at least
_NAME = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_REFERENCE = re.compile(
    rf"(?:oci://)?(?P<host>[^/@\s]+)/(?P<repository>{_NAME}(?:/{_NAME})*)"
    r"(?::(?P<tag>\w[\w.-]{0,127}))?(?:@(?P<digest>sha256:[0-9a-f]{64}))?",
    re.ASCII,
)
_CHALLENGE = re.compile(r'(\w+)="([^"]*)"')


class Reference(NamedTuple):
    """A checked address such as host/models/digits:3. root: of the registry. tag, digest: "" if the address has none."""

    root: Location
    host: str
    repository: str
    tag: str
    digest: str

    def text(self) -> str:
        named = f"{self.host}/{self.repository}" + (f":{self.tag}" if self.tag else "")
        return f"{named}@{self.digest}" if self.digest else named


def parse_reference(text: str, allowed: Sequence[str], setting: str) -> Reference:
    """Read an address of an artefact. Raises Invalid at the field `address`, and Forbidden if no allowed registry has it."""
    found = _REFERENCE.fullmatch(text.strip())
    if found is None or len(found["repository"]) > 255:
        raise Invalid.at("address", "expected an address such as registry.example/models/digits:3, in small letters")
    for one in allowed:
        place = parse_location(one)
        root = parse_location(f"{place.scheme}://{found['host']}/v2/")
        if root._replace(path=f"/v2/{found['repository']}").is_below(_api(place)):
            return Reference(root, found["host"], found["repository"], found["tag"] or "", found["digest"] or "")
    raise Forbidden(f"this registry may not be used; an administrator allows registries by {setting}")


def _api(place: Location) -> Location:
    return place._replace(path=f"/v2{place.path}".rstrip("/"))


class Registry:
    """A repository of a registry, for one action: "pull" or "pull,push"."""

    def __init__(self, reference: Reference, allowed: Sequence[str], action: str = "pull") -> None:
        places = [parse_location(one) for one in allowed]
        # A registry may send its clients to another host for the bytes, which an administrator lists as it is.
        self.allowed = [reference.root, *map(_api, places), *places]
        self._reference, self._action = reference, action
        self._header: dict[str, str] = {}
        self._until = 0.0

    def location(self, path: str) -> Location:
        """Return the address of something in this repository, such as `manifests/3`."""
        root = self._reference.root
        return root._replace(path=f"{root.path}{self._reference.repository}/{path}")

    def manifest(self, tag_or_digest: str) -> tuple[bytes, str]:
        """Return a manifest and its digest. Raises NotFound, and Unavailable if it is not the one that was asked for."""
        headers = {"Accept": ", ".join(MANIFESTS)}
        try:
            with answer_to(
                self.location(f"manifests/{tag_or_digest}"), self.allowed, headers, self.secrets()
            ) as answer:
                content = _content(answer)
        except NotFound:
            raise NotFound(f"the registry has no '{self._reference.repository}' with '{tag_or_digest}'") from None
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        if ":" in tag_or_digest and tag_or_digest != digest:
            raise Unavailable(f"{self._reference.host} sent another manifest than was asked for")
        return content, digest

    def has_blob(self, digest: str) -> bool:
        with self._asked("HEAD", self.location(f"blobs/{digest}")) as answer:
            if answer.status == 404:
                return False
            if answer.status == 200 or answer.status in (302, 307):  # its bytes are at another place
                return True
            raise _refusal(answer)

    def send_blob(self, digest: str, size: int, pieces: Iterable[bytes]) -> None:
        """Send a blob whole. Raises Conflict if its bytes do not have the digest."""
        with self._asked("POST", self.location("blobs/uploads/"), {"Content-Length": "0"}) as answer:
            if answer.status != 202 or "location" not in answer.headers:
                raise _refusal(answer)
            target = parse_location(urllib.parse.urljoin(answer.location.text, answer.headers["location"]))
        if target.origin != self._reference.root.origin:
            raise Forbidden(f"{self._reference.host} wants the bytes to be sent to {target.host}, which is not allowed")
        query = "&".join(filter(None, (target.query, f"digest={urllib.parse.quote(digest)}")))
        headers = {"Content-Type": "application/octet-stream", "Content-Length": str(size)}
        with self._asked("PUT", target._replace(query=query), headers, pieces) as answer:
            if answer.status != 201:
                raise _refusal(answer)

    def send_manifest(self, tag: str, content: bytes) -> None:
        headers = {"Content-Type": MANIFEST, "Content-Length": str(len(content))}
        with self._asked("PUT", self.location(f"manifests/{tag}"), headers, [content]) as answer:
            if answer.status != 201:
                raise _refusal(answer)

    def secrets(self) -> dict[str, str]:
        """Return the header that the registry wants; {} if it wants none. Raises Forbidden if it accepts no credentials."""
        if time.monotonic() > self._until:
            self._header, self._until = self._authorised(), time.monotonic() + _TOKEN_S
        return self._header

    @contextmanager
    def _asked(
        self,
        method: str,
        location: Location,
        headers: Mapping[str, str] | None = None,
        body: Iterable[bytes] | None = None,
    ) -> Iterator[Answer]:
        with answer_as_it_is(
            location, [self._reference.root], method, {**(headers or {}), **self.secrets()}, body
        ) as answer:
            yield answer

    def _authorised(self) -> dict[str, str]:
        root, given = self._reference.root, _credentials(self._reference)
        with answer_as_it_is(root, [root], "GET", {}) as answer:
            status, challenge = answer.status, answer.headers.get("www-authenticate", "")
        kind, _, rest = challenge.partition(" ")
        fields = dict(_CHALLENGE.findall(rest))
        if status == 401 and kind.lower() == "bearer" and "realm" in fields:
            return {"Authorization": f"Bearer {self._token(fields, given)}"}
        if status in (200, 401):
            return given
        if status >= 500 or status == 429:
            raise Unavailable(f"{root.host} cannot answer now (status {status}); try again later")
        raise Invalid(f"{root.host} is no OCI registry: it answered /v2/ with status {status}")

    def _token(self, fields: Mapping[str, str], given: Mapping[str, str]) -> str:
        realm = parse_location(fields["realm"])
        if all(realm.origin != one.origin for one in self.allowed):
            raise Forbidden(
                f"{self._reference.host} wants a token of {realm.host}, which is not allowed; an administrator can allow it"
            )
        asked = {"scope": f"repository:{self._reference.repository}:{self._action}"}
        if "service" in fields:
            asked["service"] = fields["service"]
        query = "&".join(filter(None, (realm.query, urllib.parse.urlencode(asked))))
        with answer_to(realm._replace(query=query), [realm], {}, given) as answer:
            found = json_object(_content(answer))
        token = found.get("token") or found.get("access_token")
        if not isinstance(token, str) or not token.isprintable():
            raise Unavailable(f"{realm.host} gives no token")
        return token


def json_object(content: bytes) -> dict[str, Any]:
    """Return a JSON object. Raises Unavailable if it is none."""
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise Unavailable("the registry's answer is not a JSON object; is it an OCI registry?")
    return found


def _content(answer: Answer) -> bytes:
    content = bytearray()
    for piece in answer.body():
        content += piece
        if len(content) > _MOST_JSON:
            raise Invalid(f"the answer of {answer.location.host} is longer than 4 MiB, so it is no manifest")
    return bytes(content)


def _refusal(answer: Answer) -> Exception:
    """Return the error of an answer, with the first sentence of the registry's."""
    host, status = answer.location.host, answer.status
    try:
        errors = json_object(_content(answer))["errors"]
        code, why = str(errors[0]["code"]), str(errors[0].get("message", ""))[:200]
    except Exception:  # an error without a body, or with another form
        code = why = ""
    said = f"{host} refuses it (status {status}{f': {why}' if why.isprintable() and why else ''})"
    if code == "DIGEST_INVALID":
        return Conflict("a file was changed while it was sent; try again")
    if status == 413:
        return TooLarge(said)
    if status in (401, 403):
        return Forbidden(said)
    if status == 429 or status >= 500:
        return Unavailable(f"{host} cannot answer now (status {status}); try again later")
    return Invalid(said)


def _credentials(reference: Reference) -> dict[str, str]:
    """Return the header with the credentials of the registry, or of the longest path in it that the file names; {} for none."""
    path = settings.REGISTRY_AUTH_FILE
    if path is None:
        return {}
    wanted = f"{reference.host}/{reference.repository}/"
    try:
        entries = json.loads(Path(path).read_text()).get("auths", {})
        fitting = [name for name in entries if wanted.startswith(f"{name.removeprefix('https://').rstrip('/')}/")]
        given = entries[max(fitting, key=len)] if fitting else {}
        pair = given.get("auth") or ""
        if not pair and given.get("username"):
            pair = base64.b64encode(f"{given['username']}:{given.get('password', '')}".encode()).decode("ascii")
    except (OSError, ValueError, AttributeError):
        raise Unavailable(
            "the file that SLIPWAY_REGISTRY_AUTH_FILE names is not readable JSON in Docker's form"
        ) from None
    return {"Authorization": f"Basic {pair}"} if pair else {}
