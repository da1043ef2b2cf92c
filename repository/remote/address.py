"""Addresses of model repositories in the cloud, as tritonserver's command line writes them, and their credentials.

s3://bucket/path   s3://host:port/bucket/path   s3://https://host:port/bucket/path
gs://bucket/path   as://account/container/path   or any other address that fsspec knows
Source: Triton, docs/user_guide/model_repository.md, "Model Repository Locations".
"""

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from repository.core.errors import InvalidName, RepositoryError
from repository.core.json_types import Json, JsonObject

SILENCE_S = 15.0  # how long a store may say nothing before it is asked again
CREDENTIALS_VARIABLE = "TRITON_CLOUD_CREDENTIAL_PATH"

_ADDRESS = re.compile(r"(?P<protocol>[A-Za-z][A-Za-z0-9+.-]*)://(?P<rest>.*)", re.DOTALL)
_S3_HOST = re.compile(r"(?P<endpoint>https?://[^/]+|[^/:]+:\d+)/(?P<path>.+)")
_USER = re.compile(r"//[^/@]*@")


@dataclass(frozen=True, slots=True)
class RemoteAddress:
    """`protocol` and `url` are in fsspec's form. `text` is the address as given. `repr` hides `url` and `text`."""

    protocol: str
    url: str = field(repr=False)
    text: str = field(repr=False)
    endpoint: str = ""
    account: str = ""

    @property
    def without_secrets(self) -> str:
        """Return the address for logs, without a user's name or password."""
        return _USER.sub("//", self.text)


def is_remote(text: str) -> bool:
    return _ADDRESS.fullmatch(text) is not None


def parse(text: str) -> RemoteAddress:
    """Read an address. Raises InvalidName, with one sentence, if it lacks a bucket or container."""
    match = _ADDRESS.fullmatch(text)
    if match is None:
        raise InvalidName(f"expected an address such as s3://bucket/path, got '{text}'")
    protocol, rest = match["protocol"].lower(), match["rest"].rstrip("/")
    if protocol == "s3":
        return _s3(text, rest)
    if protocol == "as":
        account, _, path = rest.partition("/")
        if not account or not path:
            raise InvalidName("expected as://account/container/path")
        return RemoteAddress("abfs", f"abfs://{path}", text, account=account.partition(".")[0])
    if not rest:
        raise InvalidName(f"expected {protocol}://bucket/path")
    return RemoteAddress(protocol, f"{protocol}://{rest}", text)


def _s3(text: str, rest: str) -> RemoteAddress:
    """Parse an S3 address.

    A host has a port, or a scheme before it: the name of a bucket has no colon. The default scheme of a host is http.
    """
    host = _S3_HOST.fullmatch(rest)
    if host is None:
        if not rest or ":" in rest.partition("/")[0]:
            raise InvalidName(
                "expected s3://bucket/path, s3://host:port/bucket/path or s3://https://host:port/bucket/path"
            )
        return RemoteAddress("s3", f"s3://{rest}", text)
    endpoint = host["endpoint"] if "://" in host["endpoint"] else f"http://{host['endpoint']}"
    return RemoteAddress("s3", f"s3://{host['path']}", text, endpoint=endpoint)


def storage_options(address: RemoteAddress, environment: Mapping[str, str] = os.environ) -> dict[str, object]:
    """Return the options for fsspec's file system. Without a credentials file, the provider's library finds credentials."""
    given = _credentials(address, environment)
    if address.protocol == "gs":
        return {"token": given} if given else {}
    fields = given if isinstance(given, dict) else {}
    if address.protocol == "s3":
        return _s3_options(address, fields)
    if address.protocol == "abfs":
        return _azure_options(address, fields, environment)
    return {}


def _s3_options(address: RemoteAddress, given: JsonObject) -> dict[str, object]:
    client: JsonObject = {}
    config: dict[str, object] = {"connect_timeout": 5, "read_timeout": SILENCE_S, "retries": {"max_attempts": 2}}
    if address.endpoint:
        client["endpoint_url"] = address.endpoint
        config["s3"] = {"addressing_style": "path"}
    options: dict[str, object] = {"client_kwargs": client, "config_kwargs": config}
    if given:
        names = {"key": "key_id", "secret": "secret_key", "token": "session_token", "profile": "profile"}
        options |= {name: given[field] for name, field in names.items() if given.get(field)}
        if given.get("region"):
            client["region_name"] = given["region"]
    return options


def _azure_options(address: RemoteAddress, given: JsonObject, environment: Mapping[str, str]) -> dict[str, object]:
    key = given.get("account_key") or environment.get("AZURE_STORAGE_KEY")
    kind = given.get("auth_type") or environment.get("AZURE_STORAGE_AUTH_TYPE", "")
    options: dict[str, object] = {"account_name": address.account}
    if key and not kind:
        return options | {"account_key": key}
    return options | {"anon": False}


def _credentials(address: RemoteAddress, environment: Mapping[str, str]) -> Json:
    """Return the entry of Triton's credentials file whose name is the longest prefix of the address, or None if none is."""
    path = environment.get(CREDENTIALS_VARIABLE)
    if not path:
        return None
    try:
        document = json.loads(Path(path).read_text())
        section = document.get(address.text.partition("://")[0], {})
        names = [name for name in section if address.text.startswith(name)]
        given: Json = section[max(names, key=len)] if names else None
    except (OSError, ValueError, AttributeError):
        raise RepositoryError(f"the file that {CREDENTIALS_VARIABLE} names is not a readable JSON object") from None
    return given
