"""The context of a handler: its model, its server, the requests of a batch, and the status and headers of their answers.

Source: pytorch/serve, docs/custom_service.md.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any


class RequestProcessor:
    """The headers of one request, and the status, reason and headers that its handler sets for the answer."""

    # These defaults are on the class, because few handlers ask for all headers or set headers of an answer.
    _own = False  # whether the headers are a copy that belongs only to this request
    _status = 200
    _reason: str | None = None
    _response_headers: dict[str, str] | None = None
    touched = False  # whether the handler has set anything

    def __init__(self, request_header: dict[str, Any]) -> None:
        self._headers = request_header

    def get_request_property(self, key: str) -> Any:
        """Return a header of the request. The name must be spelled as the client spelled it."""
        return self._headers.get(key)

    def get_request_properties(self) -> dict[str, Any]:
        if not self._own:
            self._own = True
            self._headers = dict(self._headers)
        return self._headers

    def report_status(self, code: int, reason_phrase: str | None = None) -> None:
        self._status = int(code)
        self._reason = reason_phrase
        self.touched = True

    def get_response_status_code(self) -> int:
        return self._status

    def get_response_status_phrase(self) -> str | None:
        return self._reason

    def add_response_property(self, key: str, value: str) -> None:
        self.get_response_headers()[key] = value
        self.touched = True

    def get_response_headers(self) -> dict[str, str]:
        if self._response_headers is None:
            self._response_headers = {}
        return self._response_headers

    def get_response_header(self, key: str) -> str | None:
        return self.get_response_headers().get(key)


class Context:
    """The argument of `initialize` and `handle`. `request_ids` and `request_processor` belong to the current batch."""

    def __init__(
        self,
        model_name: str,
        model_dir: str,
        manifest: Mapping[str, Any] | None,
        batch_size: int,
        gpu: int | None,
        mms_version: str,
        limit_max_image_pixels: bool = True,
        metrics: Any = None,
        model_yaml_config: Mapping[str, Any] | None = None,
    ) -> None:
        self.model_name = model_name
        self.manifest = manifest
        self.model_yaml_config = {} if model_yaml_config is None else model_yaml_config
        self._system_properties = {
            "model_dir": model_dir,
            "gpu_id": gpu,
            "batch_size": batch_size,
            "server_name": "MMS",
            "server_version": mms_version,
            "limit_max_image_pixels": limit_max_image_pixels,
        }
        self.request_ids: dict[int, str] | None = None
        self._request_processor: list[RequestProcessor] = [RequestProcessor({})]
        self._metrics = metrics
        self.header_key_sequence_id = os.environ.get("TS_REQUEST_SEQUENCE_ID", "ts_request_sequence_id")
        self.header_key_sequence_start = os.environ.get("TS_REQUEST_SEQUENCE_START", "ts_request_sequence_start")
        self.header_key_sequence_end = os.environ.get("TS_REQUEST_SEQUENCE_END", "ts_request_sequence_end")
        self.stopping_criteria: Any = None
        # Sends a part of the answers. Set while a batch of a decoupled model runs.
        self.send_intermediate: Callable[[Sequence[Any], Mapping[int, str]], None] | None = None

    @property
    def system_properties(self) -> dict[str, Any]:
        return self._system_properties

    @property
    def request_processor(self) -> list[RequestProcessor]:
        return self._request_processor

    @request_processor.setter
    def request_processor(self, request_processor: list[RequestProcessor]) -> None:
        self._request_processor = request_processor

    @property
    def metrics(self) -> Any:
        return self._metrics

    @metrics.setter
    def metrics(self, metrics: Any) -> None:
        self._metrics = metrics

    def begin(self, request_ids: dict[int, str], headers: list[dict[str, Any]]) -> None:
        """Begin a batch. The server calls this, not handlers. Requests with the same headers may share one object."""
        self.request_ids = request_ids
        if self._metrics is not None:
            self._metrics.request_ids = request_ids
        self._request_processor = [RequestProcessor(one) for one in headers]

    # -- requests ------------------------------------------------------------------------------------------------------
    def get_request_id(self, idx: int = 0) -> str | None:
        return None if self.request_ids is None else self.request_ids.get(idx)

    def get_request_header(self, idx: int, key: str) -> Any:
        """Return a header of a request. The name must be spelled as the client spelled it."""
        return self._request_processor[idx].get_request_property(key)

    def get_all_request_header(self, idx: int) -> dict[str, Any]:
        return self._request_processor[idx].get_request_properties()

    def get_sequence_id(self, idx: int) -> str | None:
        """Return the id of a request's sequence, or None if the request belongs to no sequence."""
        found: str | None = self._request_processor[idx].get_request_property(self.header_key_sequence_id)
        return found

    # -- answers -------------------------------------------------------------------------------------------------------
    def set_response_content_type(self, idx: int, value: str) -> None:
        self._request_processor[idx].add_response_property("content-type", value)

    def get_response_content_type(self, idx: int) -> str | None:
        return self._request_processor[idx].get_response_header("content-type")

    def set_response_status(self, code: int = 200, phrase: str = "", idx: int = 0) -> None:
        self._request_processor[idx].report_status(code, reason_phrase=phrase)

    def set_all_response_status(self, code: int = 200, phrase: str = "") -> None:
        """Give all answers of the batch the same status."""
        for processor in self._request_processor:
            processor.report_status(code, reason_phrase=phrase)

    def get_response_status(self, idx: int) -> tuple[int, str | None]:
        processor = self._request_processor[idx]
        return processor.get_response_status_code(), processor.get_response_status_phrase()

    def set_response_header(self, idx: int, key: str, value: str) -> None:
        self._request_processor[idx].add_response_property(key, value)

    def get_response_headers(self, idx: int) -> dict[str, str]:
        return self._request_processor[idx].get_response_headers()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Context) and self.__dict__ == other.__dict__

    __hash__ = None  # type: ignore[assignment]
