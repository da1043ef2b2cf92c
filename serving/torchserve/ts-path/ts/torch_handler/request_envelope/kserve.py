"""`kserve`, version 1 of its protocol: {"instances": [...]} in, {"predictions": [...]} or {"explanations": [...]} out."""

from typing import Any

from .json import JSONEnvelope


class KServeEnvelope(JSONEnvelope):
    def instance(self, given: Any) -> Any:
        """Return an instance as it came, because handlers decode base64 themselves."""
        return given

    def wrapped(self, predictions: list[Any]) -> Any:
        explained = self.context is not None and self.context.get_request_header(0, "explain") == "True"
        return {"explanations" if explained else "predictions": predictions}


ENVELOPE = KServeEnvelope
