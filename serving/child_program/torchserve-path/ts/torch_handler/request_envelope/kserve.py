"""`kserve`: KServe's protocol of version 1: {"instances": [...]} is answered by {"predictions": [...]}."""

from typing import Any

from .json import JSONEnvelope


class KServeEnvelope(JSONEnvelope):
    def wrapped(self, predictions: list[Any]) -> Any:
        return {"predictions": predictions}


ENVELOPE = KServeEnvelope
