"""A file at a web address that an administrator allows."""

import urllib.parse
from collections.abc import Mapping

from django.conf import settings

from dashboard.shared.exceptions import Invalid, NotFound, Unavailable
from dashboard.uploads.sources.base import Field, Pieces, Place, Source, SourceChanged, SourceFile
from dashboard.uploads.sources.http_client import Answer, Location, answer_to, parse_location


class Url(Source):
    name, label, setting = "url", "a URL", "SLIPWAY_SOURCE_URLS"
    fields = (Field("address", "URL", "{place}/model.onnx", "A file; its name is the last part of the address."),)

    def allowed_places(self) -> list[str]:
        return list(settings.SOURCE_URLS)

    def files(self, place: Place) -> list[SourceFile]:
        location = parse_location(place["address"])
        name = urllib.parse.unquote(location.path.rpartition("/")[2])
        if not name:
            raise Invalid.at("address", "the address must end in the name of a file")
        with answer_to(location, self._allowed(), {}) as answer:
            return [SourceFile(name, whole_length(answer), token_of(answer.headers))]

    def read(self, place: Place, file: SourceFile, offset: int) -> Pieces:
        return read_web_file(parse_location(place["address"]), self._allowed(), file, offset)

    def public(self, place: Place) -> Place:
        return {"address": self.title(place)}  # without the query, which may be a signature

    def title(self, place: Place) -> str:
        return parse_location(place["address"]).text

    def _allowed(self) -> list[Location]:
        return [parse_location(one) for one in settings.SOURCE_URLS]


def whole_length(answer: Answer) -> int:
    """Return the bytes of the file. Raises Invalid if the server does not tell them, or packs the file."""
    encoding = answer.headers.get("content-encoding", "identity").lower()
    if encoding != "identity":
        raise Invalid(f"{answer.location.host} sends the file packed ({encoding[:40]}), so it is not fetched")
    if answer.length is None:
        raise Invalid(
            f"{answer.location.host} does not say how long the file is (Content-Length), so it is not fetched"
        )
    return answer.length


def token_of(headers: Mapping[str, str]) -> str:
    """Return what changes with the content: the ETag, else the time of the last change, "" without both."""
    return (headers.get("etag") or headers.get("last-modified") or "")[:200]


def read_web_file(
    location: Location,
    allowed: list[Location],
    file: SourceFile,
    offset: int,
    secrets: Mapping[str, str] | None = None,
) -> Pieces:
    """Yield the bytes of a web file from an offset, as `Source.read` says.

    A server that knows no ranges sends the whole file, of which the first `offset` bytes are passed over.
    """
    headers = {"Range": f"bytes={offset}-"} if offset else {}
    if offset and file.token and not file.token.startswith("W/"):
        headers["If-Range"] = file.token
    try:
        with answer_to(location, allowed, headers, secrets) as answer:
            skipped = 0 if answer.status == 206 else offset
            _refuse_changed(answer, file, offset if answer.status == 206 else 0)
            for piece in answer.body():
                left = piece[skipped:]
                skipped -= len(piece) - len(left)
                if left:
                    yield left
    except NotFound:
        raise SourceChanged(file.name, "was removed") from None


def _refuse_changed(answer: Answer, file: SourceFile, offset: int) -> None:
    """Raise SourceChanged if the answer is not of the listed file, from `offset` on."""
    if file.token and token_of(answer.headers) != file.token:
        raise SourceChanged(file.name, "was changed")
    if answer.length is not None and answer.length != file.size - offset:
        raise SourceChanged(file.name, "got another length")
    if offset and answer.headers.get("content-range") != f"bytes {offset}-{file.size - 1}/{file.size}":
        raise Unavailable(f"{answer.location.host} sent another part of '{file.name}' than was asked for")
