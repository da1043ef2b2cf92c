"""A version of a registered model of MLflow, by the REST API of the one tracking server that an administrator allows.

The registry says where the files of the version are. Files behind the server's own proxy of artefacts come from there; files in
a bucket or folder come from that, which an administrator must have allowed as well. The server's credentials are in the
environment, by the names that MLflow's own clients read: MLFLOW_TRACKING_TOKEN, or MLFLOW_TRACKING_USERNAME and
MLFLOW_TRACKING_PASSWORD. Only the tracking server gets them.
Source: MLflow, "REST API" (registered-models/alias, model-versions/get, model-versions/get-download-uri), and its protocol
"mlflow-artifacts" (ListArtifacts, DownloadArtifact).
"""

import base64
import json
import os
import posixpath
import re
import time
import urllib.parse
from collections.abc import Mapping
from typing import Any

from django.conf import settings

from dashboard.shared.exceptions import Forbidden, Invalid, NotFound, Unavailable
from dashboard.uploads.sources.base import (
    Field,
    Pieces,
    Place,
    Source,
    SourceFile,
    model_name_of,
    refuse_too_many,
    required,
)
from dashboard.uploads.sources.bucket import Bucket
from dashboard.uploads.sources.folder import Folder
from dashboard.uploads.sources.http_client import Location, answer_to, parse_location
from dashboard.uploads.sources.url import read_web_file
from repository.core.addresses import normal_path, part_problem
from repository.core.errors import UnsafePath

ARTIFACTS = "/api/2.0/mlflow-artifacts/artifacts"
_API = "/api/2.0/mlflow"
_MOST_JSON = 8 << 20
_MOST_FOLDERS = 1000
_LISTING_S = 60.0  # for all folders of a version
_MODEL = Field("model", "Registered model", "fraud-detector")
_VERSION = Field("version", "Version or alias", "champion", "A number, or the name of an alias.")
_WASB = re.compile(r"(?:wasbs|abfss)://(?P<container>[^@/]+)@(?P<account>[^./]+)\.[^/]*/(?P<path>.+)")
_GOOD_STATES = ("READY", "")


class MlflowRegistry(Source):
    name, label, setting, fields = "mlflow", "MLflow", "SLIPWAY_SOURCE_MLFLOW", (_MODEL, _VERSION)

    def allowed_places(self) -> list[str]:
        return [settings.SOURCE_MLFLOW] if settings.SOURCE_MLFLOW else []

    def located(self, asked: Mapping[str, str]) -> Place:
        model, version = required(asked, _MODEL), required(asked, _VERSION).removeprefix("@")
        try:
            if version.isascii() and version.isdecimal():
                found = _call(f"{_API}/model-versions/get", {"name": model, "version": version})
            else:
                found = _call(f"{_API}/registered-models/alias", {"name": model, "alias": version})
        except (NotFound, Invalid):  # an unknown alias is a 400
            raise NotFound(f"the MLflow server knows no version or alias '{version}' of a model '{model}'") from None
        row = found.get("model_version")
        number = str(row.get("version", "")) if isinstance(row, dict) else ""
        if not isinstance(row, dict) or not number.isdecimal():
            raise Unavailable("the MLflow server's answer names no version of the model")
        if str(row.get("status", "")) not in _GOOD_STATES:
            raise Invalid(f"version {number} of '{model}' is not ready in the registry")
        root = _call(f"{_API}/model-versions/get-download-uri", {"name": model, "version": number}).get("artifact_uri")
        if not isinstance(root, str) or not root:
            raise Unavailable("the MLflow server does not say where the files of the version are")
        place = {"model": model, "version": number, "root": root}
        _store(root)
        return place

    def files(self, place: Place) -> list[SourceFile]:
        store, inner = _store(place["root"])
        return _proxied_files(inner["path"]) if store is None else store.files(inner)

    def read(self, place: Place, file: SourceFile, offset: int) -> Pieces:
        store, inner = _store(place["root"])
        if store is not None:
            return store.read(inner, file, offset)
        location = _location(f"{ARTIFACTS}/{_quoted(posixpath.join(inner['path'], file.name))}")
        return read_web_file(location, [_server()], file, offset, _credentials())

    def proposed_name(self, place: Place) -> str:
        return model_name_of(place["model"])

    def title(self, place: Place) -> str:
        return f"{place['model']}, version {place['version']}"


def _store(root: str) -> tuple[Source | None, Place]:
    """Return the source that reads the files of a version, and the place in it; None for the server's proxy of artefacts.

    Raises Invalid if no source reads them, Forbidden if they are on another host.
    """
    parts = urllib.parse.urlsplit(root)
    proxied = parts.path
    if parts.scheme in ("http", "https") and ARTIFACTS in parts.path:
        proxied = parts.path.partition(ARTIFACTS)[2]
    elif parts.scheme in ("", "file"):
        return Folder(), {"address": urllib.parse.unquote(parts.path) if parts.scheme else root}
    elif parts.scheme in ("s3", "gs"):
        return Bucket(), {"address": root.rstrip("/")}
    elif azure := _WASB.fullmatch(root):
        return Bucket(), {"address": f"as://{azure['account']}/{azure['container']}/{azure['path'].rstrip('/')}"}
    elif parts.scheme != "mlflow-artifacts":
        raise Invalid(
            f"the files of this version are at a '{parts.scheme[:20]}:' address, which cannot be read from here"
        )
    if parts.netloc and parts.hostname != _server().host:
        raise Forbidden(f"the files of this version are on {parts.hostname}, which is not the allowed MLflow server")
    try:
        return None, {"path": urllib.parse.unquote(normal_path(proxied)).strip("/")}
    except UnsafePath as error:
        raise Invalid(f"the MLflow server names an unsafe path: {error.message}") from None


def _proxied_files(root: str) -> list[SourceFile]:
    """List the artefacts below a path of the proxy, folder by folder."""
    found: list[SourceFile] = []
    folders, listed, until = [""], 0, time.monotonic() + _LISTING_S
    while folders:
        folder, listed = folders.pop(), listed + 1
        refuse_too_many(len(found) + len(folders))
        if listed > _MOST_FOLDERS:
            raise Invalid(f"the version has more than {_MOST_FOLDERS} folders in the registry")
        if time.monotonic() > until:
            raise Unavailable(f"the MLflow server took longer than {_LISTING_S:.0f} s to list the version")
        for row in _rows(_call(ARTIFACTS, {"path": posixpath.join(root, folder).rstrip("/")})):
            name, size = posixpath.basename(str(row.get("path", ""))), row.get("file_size")
            if part_problem(name):
                raise Invalid(f"the MLflow server lists a file that needs {part_problem(name)}")
            if row.get("is_dir"):
                folders.append(posixpath.join(folder, name))
            elif str(size).isdecimal():
                found.append(SourceFile(posixpath.join(folder, name), int(str(size))))
            else:
                raise Invalid(f"the MLflow server does not say how long '{name}' is")
    if not found:
        raise NotFound("the MLflow server lists no files of this version")
    return sorted(found)


def _rows(answer: Mapping[str, Any]) -> list[dict[str, Any]]:
    rows = answer.get("files", [])
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


def _call(path: str, query: Mapping[str, str]) -> dict[str, Any]:
    """Return the JSON of an answer of the tracking server."""
    content = bytearray()
    with answer_to(_location(path, urllib.parse.urlencode(query)), [_server()], {}, _credentials()) as answer:
        for piece in answer.body():
            content += piece
            if len(content) > _MOST_JSON:
                raise Invalid("the MLflow server's answer is longer than 8 MiB")
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise Unavailable("the MLflow server's answer is not a JSON object; is it a tracking server?")
    return found


def _server() -> Location:
    return parse_location(settings.SOURCE_MLFLOW)


def _location(path: str, query: str = "") -> Location:
    server = _server()
    return server._replace(path=server.path.rstrip("/") + path, query=query)


def _quoted(path: str) -> str:
    return urllib.parse.quote(path)


def _credentials() -> dict[str, str]:
    """Return the header with the server's credentials, from the environment."""
    token, user = os.environ.get("MLFLOW_TRACKING_TOKEN"), os.environ.get("MLFLOW_TRACKING_USERNAME")
    if token:
        return {"Authorization": f"Bearer {token}"}
    if user:
        pair = f"{user}:{os.environ.get('MLFLOW_TRACKING_PASSWORD', '')}"
        return {"Authorization": f"Basic {base64.b64encode(pair.encode()).decode('ascii')}"}
    return {}
