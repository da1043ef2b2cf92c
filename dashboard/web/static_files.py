"""Serves static files, compressed, under addresses that change with their content, so that browsers cache them forever.

The hash is before the path (/static/<hash>/js/app.js), so relative references between modules and style sheets need no
rewriting. One hash covers a whole group of files: ours are one group, and each package is another. The files are read once,
when the process starts: they stay consistent with each other even after a `git pull`.
"""

import gzip
import mimetypes
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import cache, cached_property
from hashlib import blake2b
from pathlib import Path

from django.conf import settings
from django.contrib.staticfiles.finders import FileSystemFinder, get_finders
from django.contrib.staticfiles.storage import StaticFilesStorage
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseNotFound, HttpResponseNotModified
from django.utils.cache import patch_vary_headers
from django.utils.http import parse_etags

from dashboard.web.compression import TEXT, takes_gzip

Handler = Callable[[HttpRequest], HttpResponse]

FOR_GOOD = "public, max-age=31536000, immutable"
ASK_EACH_TIME = "no-cache"
# The prefixes of the packages' files that pages use. The packages bring many more, which are not served.
OF_PACKAGES = ("django_htmx/", "plotly/plotly.min.js")


class StaticFile:
    """One file as it was when the process started. group: the hash of the file's whole group."""

    def __init__(self, name: str, content: bytes) -> None:
        self.content = content
        self.group = ""
        self.type = mimetypes.guess_type(name)[0] or "application/octet-stream"

    @cached_property
    def compressed(self) -> bytes | None:
        """The compressed content, made at the first request, or None if it would not be smaller than the file."""
        if not self.type.startswith(TEXT):
            return None
        packed = gzip.compress(self.content, mtime=0)
        return packed if len(packed) < len(self.content) else None

    @cached_property
    def etag(self) -> str:
        return f'"{_digest(self.content)}"'


class StaticFiles:
    """Every static file by its name."""

    def __init__(self) -> None:
        self._files: dict[str, StaticFile] = {}
        self._stamps: dict[Path, int] = {}
        self._read()

    def get(self, name: str) -> StaticFile | None:
        return self._files.get(name)

    def url(self, name: str) -> str:
        """Return the file's address. Raises ValueError if there is no such file."""
        if settings.DEBUG and self._stamps != self._stamped():
            self._read()
        if name not in self._files:
            raise ValueError(f"there is no static file {name}")
        return f"{settings.STATIC_URL}{self._files[name].group}/{name}"

    def _read(self) -> None:
        groups: dict[str, dict[str, StaticFile]] = defaultdict(dict)
        self._stamps = self._stamped()
        for package, name, path in _find_files():
            groups[package].setdefault(name, StaticFile(name, path.read_bytes()))
        for files in groups.values():
            digest = _digest(*(part for name in sorted(files) for part in (name.encode(), files[name].etag.encode())))
            for file in files.values():
                file.group = digest
        self._files = {name: file for files in groups.values() for name, file in files.items()}

    def _stamped(self) -> dict[Path, int]:
        """Return the modification time of each file; only with DEBUG, where files are read again after a change."""
        return {path: path.stat().st_mtime_ns for _, _, path in _find_files()} if settings.DEBUG else {}


def _find_files() -> Iterator[tuple[str, str, Path]]:
    """Yield package ("" for ours), name and path of every file."""
    for finder in get_finders():
        for path, storage in finder.list([]):
            prefix = getattr(storage, "prefix", None) or ""
            name = f"{prefix}/{path}" if prefix else path
            ours = isinstance(finder, FileSystemFinder) and not prefix
            if ours or name.startswith(OF_PACKAGES):
                yield "" if ours else name.partition("/")[0], name, Path(storage.path(path))


def _digest(*parts: bytes) -> str:
    return blake2b(b"\0".join(parts), digest_size=8).hexdigest()


@cache
def static_files() -> StaticFiles:
    """Return the files of this process."""
    return StaticFiles()


class HashedAddresses(StaticFilesStorage):
    """Gives templates addresses with the hash."""

    def url(self, name: str | None) -> str:
        return static_files().url(name or "")


def serve_static(get_response: Handler) -> Handler:
    """Serve the files under STATIC_URL to everybody."""
    static_files()

    def middleware(request: HttpRequest) -> HttpResponse:
        if not request.path_info.startswith(settings.STATIC_URL):
            return get_response(request)
        if request.method not in ("GET", "HEAD"):
            return HttpResponseNotAllowed(["GET", "HEAD"])
        return _answer(request, request.path_info.removeprefix(settings.STATIC_URL))

    return middleware


def _answer(request: HttpRequest, path: str) -> HttpResponse:
    group, _, name = path.partition("/")
    file, kept = static_files().get(name), FOR_GOOD
    if file is None or file.group != group:
        # The request has no hash, or the hash of another release: its page was opened before an update.
        file, kept = file or static_files().get(path), ASK_EACH_TIME
    if file is None:
        return HttpResponseNotFound("there is no such file\n", content_type="text/plain")
    if file.etag in parse_etags(request.headers.get("If-None-Match", "")):
        response: HttpResponse = HttpResponseNotModified()
    else:
        response = _send_file(request, file)
    response["Cache-Control"], response["ETag"] = kept, file.etag
    patch_vary_headers(response, ["Accept-Encoding"])
    return response


def _send_file(request: HttpRequest, file: StaticFile) -> HttpResponse:
    packed = file.compressed if takes_gzip(request) else None
    kind = f"{file.type}; charset=utf-8" if file.type.startswith(TEXT) else file.type
    response = HttpResponse(packed or file.content, content_type=kind)
    response.headers["Content-Length"] = str(len(response.content))
    if packed:
        response.headers["Content-Encoding"] = "gzip"
    return response
