"""The functions of a workflow, which run before and after its models."""

import json


def pre(data, context):
    if data is None:
        return None
    if any(row.get("body") == b"fail" for row in data):
        raise ValueError("asked to fail")
    return [row.get("body") or row.get("data") for row in data]


def join(data, context):
    if data is None:
        return None
    return [{name: json.loads(bytes(value)) for name, value in sorted(row.items())} for row in data]
