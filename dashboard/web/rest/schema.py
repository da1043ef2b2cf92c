"""The OpenAPI schema of the REST API: each operation has a summary, a description and the right that it needs."""

import inspect
import re
from functools import cache
from typing import Any

from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.openapi import AutoSchema

_SENTENCE = re.compile(r"(?<=[^\s.][.])\s+(?=[A-Z`(])")


class OperationSchema(AutoSchema):
    """Takes the summary from the first sentence of the method's docstring, and the description from the rest."""

    def get_summary(self) -> str:
        return self._sentences()[0].rstrip(".")

    def get_description(self) -> str:  # type: ignore[override]  # as drf-spectacular has it
        return " ".join(self._sentences()[1:])

    def get_extensions(self) -> dict[str, Any]:
        right = getattr(self.view, "rights", {}).get(self.method)
        return {"x-right": right.value} if right else {}

    def _sentences(self) -> list[str]:
        method = getattr(self.view, self.method.lower())
        text = " ".join(inspect.cleandoc(method.__doc__ or "").split())
        return _SENTENCE.split(text)


@cache
def whole_schema() -> dict[str, Any]:
    """Return the schema of every route. It is made once in a process because it is the same for every caller."""
    generator: Any = SchemaGenerator()  # type: ignore[no-untyped-call]
    made: dict[str, Any] = generator.get_schema(request=None, public=True)
    return made
