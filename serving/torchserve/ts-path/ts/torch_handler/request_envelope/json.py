"""The envelope `json`: a request {"instances": [...]} is answered by {"predictions": [...]} as text.

The handler gets all instances of a batch as one list. {"b64": "..."} means bytes, as an instance or as a value in an instance.
"""

import base64
import json
from typing import Any

from .base import BaseEnvelope, object_of


class JSONEnvelope(BaseEnvelope):
    _lengths: list[int]

    def parse_input(self, data: list[Any]) -> list[Any]:
        """Return the instances of all requests."""
        rows = []
        for row in data:
            instances = object_of(row).get("instances")
            if not isinstance(instances, list):
                raise ValueError('the body must have the list "instances"')
            rows.append(instances)
        self._lengths = [len(row) for row in rows]
        return [self.instance(one) for row in rows for one in row]

    def instance(self, given: Any) -> Any:
        """Return an instance in the form that handlers get."""
        whole = _decoded(given)
        return {name: _decoded(value) for name, value in whole.items()} if isinstance(whole, dict) else whole

    def format_output(self, data: list[Any]) -> list[Any]:
        """Return the predictions of each request. Raises ValueError unless there are as many predictions as instances."""
        if len(data) != sum(self._lengths):
            raise ValueError(f"the handler returned {len(data)} answers for {sum(self._lengths)} instances")
        answers, start = [], 0
        for length in self._lengths:
            answers.append(self.wrapped(data[start : start + length]))
            start += length
        return answers

    def wrapped(self, predictions: list[Any]) -> Any:
        return json.dumps({"predictions": predictions})


def _decoded(value: Any) -> Any:
    """Return the bytes that {"b64": "..."} means, or any other value unchanged."""
    if isinstance(value, dict) and list(value) == ["b64"]:
        return base64.b64decode(value["b64"])
    return value


ENVELOPE = JSONEnvelope
