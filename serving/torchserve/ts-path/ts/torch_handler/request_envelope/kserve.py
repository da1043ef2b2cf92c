"""The envelope `kserve` (KServe V1): {"instances": [...]} gets {"predictions": [...]} or {"explanations": [...]} as answer."""

from typing import Any

from .json import JSONEnvelope


class KServeEnvelope(JSONEnvelope):
    def instance(self, given: Any) -> Any:
        """Return an instance unchanged, because handlers decode base64 themselves."""
        return given

    def wrapped(self, predictions: list[Any]) -> Any:
        explained = self.context is not None and self.context.get_request_header(0, "explain") == "True"
        return {"explanations" if explained else "predictions": predictions}


ENVELOPE = KServeEnvelope
