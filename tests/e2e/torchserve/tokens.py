"""The requests where tokens are on: `{inference}`, `{management}` and `{API}` stand for the server's own keys."""

import json
import re
from dataclasses import replace
from typing import Any

from tests.e2e.torchserve.asking import Ask
from tests.e2e.torchserve.predictions import outline
from tests.support.torchserve_process import Server


def keys_of(server: Server) -> Any:
    """Return what the server has written for its users."""
    return json.loads((server.folder / "key_file.json").read_text())


def with_keys(one: Ask, server: Server) -> Ask:
    keys = {name: entry["key"] for name, entry in keys_of(server).items()}
    return replace(one, headers={name: value.format(**keys) for name, value in one.headers.items()})


def bearing(title: str, key: str, target: str, listener: str = "inference", method: str = "GET") -> Ask:
    headers = {"Authorization": key} if key else {}
    return Ask(title, target, headers=headers, method=method, listener=listener, same=without_keys)


def without_keys(text: str) -> str:
    text = re.sub(r'("key": )"[^"]{8}"', r'\1"8 characters"', text)
    return re.sub(r'("expiration time": )"[^"]+"', r'\1"..."', text)


ASKS = [
    bearing("ping without a token", "", "/ping"),
    bearing("ping with a wrong token", "Bearer 12345678", "/ping"),
    bearing("ping with the token of the management API", "Bearer {management}", "/ping"),
    bearing("ping with its token", "Bearer {inference}", "/ping"),
    bearing("ping with another scheme", "Basic {inference}", "/ping"),
    bearing("ping with a token alone", "{inference}", "/ping"),
    bearing("a prediction of nobody without a token", "", "/predictions/nobody", method="POST"),
    bearing("a prediction of nobody with the token", "Bearer {inference}", "/predictions/nobody", method="POST"),
    replace(bearing("the description without a token", "", "/", method="OPTIONS"), same=outline),
    bearing("the list without a token", "", "/models", "management"),
    bearing("the list with the token of the inference API", "Bearer {inference}", "/models", "management"),
    bearing("the list with its token", "Bearer {management}", "/models", "management"),
    bearing("metrics without a token", "", "/metrics", "metrics"),
    bearing(
        "registering while the model API is off", "Bearer {management}", "/models?url=acts.mar", "management", "POST"
    ),
    bearing("unregistering while the model API is off", "Bearer {management}", "/models/acts", "management", "DELETE"),
    bearing(
        "scaling while the model API is off", "Bearer {management}", "/models/acts?min_worker=1", "management", "PUT"
    ),
    bearing("a new token without a key", "", "/token?type=inference", "management"),
    bearing("a new token with the token", "Bearer {inference}", "/token?type=inference", "management"),
    bearing("a new token of an unknown type", "Bearer {API}", "/token?type=other", "management"),
    bearing("a new token of no type", "Bearer {API}", "/token", "management"),
    bearing("a new token", "Bearer {API}", "/token?type=inference", "management"),
    bearing("ping with the new token", "Bearer {inference}", "/ping"),
]
