"""Auth files for tests, and what a usage log says."""

import hashlib
import json
from pathlib import Path
from typing import Any

from repository.core.usage_log import COUNTERS, day_files, decode

Totals = dict[tuple[str, str], dict[str, int]]  # (token, model) -> counter -> total


def digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def entry(token: str, person: str = "", groups: tuple[str, ...] = ()) -> dict[str, Any]:
    common = {"models": ["*"], "rights": ["infer"], "expires_at": None}
    return {"name": token, "sha256": digest(token), "person": person, "groups": list(groups), **common}


def write_auth(path: Path, tokens: list[dict[str, Any]], quotas: list[dict[str, Any]] | None = None) -> Path:
    beside = path.with_suffix(".new")
    beside.write_text(json.dumps({"tokens": tokens, "quotas": quotas or []}))
    return beside.replace(path)


def logged(folder: Path, *tokens: str) -> Totals:
    """Return the totals of the newest day in a log, by the names of these tokens."""
    names = {digest(token): token for token in tokens}
    totals: Totals = {}
    for record in decode(day_files(folder)[-1].read_bytes()).records if day_files(folder) else []:
        for (found, model), counts in record.uses.items():
            totals[names[found], model] = dict(zip(COUNTERS, counts, strict=True))
    return totals
