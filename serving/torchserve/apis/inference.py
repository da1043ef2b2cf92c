"""TorchServe's inference API: predictions and explanations, with any HTTP method and any body.

A request becomes one InferenceRequest with the parts of its body as the elements of the input `data`. The handler's process
decodes the parts and makes the answer. A model with other inputs takes them by their names, as JSON. No coroutine awaits a
model's answer: the server passes the answer to the request's Prediction.
"""

import asyncio
import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import orjson

from serving.core.in_flight import InFlightRequest
from serving.core.request import InferenceRequest, ParameterValue
from serving.frontends.http1.exchange import Exchange
from serving.frontends.http1.message import Head
from serving.frontends.rest.generate import generate
from serving.frontends.rest.infer import submit
from serving.frontends.shared.bounded_cache import BoundedCache
from serving.frontends.shared.worker_threads import in_thread
from serving.torchserve.apis.parts import Part, described, form_parts, is_form, media_type, urlencoded_parts
from serving.torchserve.apis.prediction import Prediction, PredictionContext, StreamedPrediction
from serving.torchserve.apis.replies import StandingHeaders
from serving.torchserve.apis.targets import INPUT, Targets
from serving.torchserve.registry.errors import WorkersStarting, bad_request
from serving.torchserve.registry.source import TorchServeSource
from serving.torchserve.telemetry.metrics import InferenceMetrics

HEADS = 1024  # how many heads are remembered
LONGEST = 4096  # how many characters the header values of a remembered head may have together
LARGE_FORM = 256 << 10  # a form with more bytes is cut into its parts on another thread


class _Asked(NamedTuple):
    """A request as its head describes it.

    model: "" if a part may name the model. version: the version as written; "" for none. form: the Content-Type of a body with
    several parts; "" if the body is one part, which `parameters` then describe. query: the parts in the query.
    """

    model: str
    version: str
    form: str
    query: list[Part]
    parameters: dict[str, ParameterValue]


class InferenceApi:
    """Handles the routes of the inference API."""

    def __init__(
        self, source: TorchServeSource, targets: Targets, headers: StandingHeaders, metrics: InferenceMetrics
    ) -> None:
        self.server = source.server
        self.options = source.options
        self.targets = targets
        self.metrics = metrics
        self._decodes = source.options.decode_input_request
        self._context = PredictionContext(headers, metrics, source.options.max_response_size)
        self._asked: BoundedCache[Head, _Asked] = BoundedCache(HEADS)

    def predict(self, exchange: Exchange) -> None:
        """Answer /predictions/{model}[/{version}[/{url_path}]]."""
        self._run(exchange, self._asked.get(exchange.head) or self._read(exchange))

    def explain(self, exchange: Exchange) -> None:
        """Answer /explanations/..., and KServe's :explain."""
        self._run(exchange, self._asked.get(exchange.head) or self._read(exchange, explain=True))

    def invoke(self, exchange: Exchange) -> None:
        """Answer the older routes, whose query may contain parts and the model's name."""
        self._run(exchange, self._asked.get(exchange.head) or self._read(exchange, older=True))

    # -- heads -----------------------------------------------------------------------------------------------------
    def _read(self, exchange: Exchange, explain: bool = False, older: bool = False) -> _Asked:
        """Read a head, and remember it, because clients repeat their heads."""
        head = exchange.head
        params = exchange.route.params
        query = urlencoded_parts(head.query.encode("latin-1")) if older else []
        model = params.get("model", "")
        kind = head.headers.get("content-type", "")
        headers = [*head.as_sent()]
        if not older:
            headers.append(("url_path", params.get("url_path", "")))
        parameters: dict[str, ParameterValue] = {"torchserve_headers": orjson.dumps(headers).decode()}
        if explain:
            parameters["torchserve_explain"] = True
        form = kind if is_form(kind) else ""
        if not form:
            parameters["torchserve_parts"] = described([*query, Part("body", b"", media_type(kind))], self._decodes)
        asked = _Asked(model, params.get("version", ""), form, query, parameters)
        if model and sum(map(len, head.headers.values())) <= LONGEST:
            self._asked.remember(head, asked)
        return asked

    def _with_model(self, exchange: Exchange, asked: _Asked, parts: Sequence[Part]) -> _Asked:
        """Return the request with the model that a part names, or with the only model. Also check that the client may call that
        model, because the listener could not."""
        model = self._named_by(parts)
        authoriser = exchange.pipeline.context.authoriser
        if not authoriser.open:
            authoriser.check(exchange.route.group, exchange.head.headers, model)
        return asked._replace(model=model)

    def _named_by(self, parts: Sequence[Part]) -> str:
        named = next((part.value.decode("utf-8", "replace") for part in parts if part.name == "model_name"), "")
        models = [] if named else self.targets.models()
        if not named and len(models) != 1:
            raise bad_request("Parameter model_name is required.")
        return named or models[0]

    # -- bodies ----------------------------------------------------------------------------------------------------
    def _run(self, exchange: Exchange, asked: _Asked) -> None:
        if not asked.form:
            if not asked.model:
                asked = self._with_model(exchange, asked, asked.query)
            values = [part.value for part in asked.query] if asked.query else []
            values.append(bytes(exchange.body))
            self._submit(exchange, asked, values, asked.parameters)
        elif len(exchange.body) < LARGE_FORM:
            self._submit_form(exchange, asked, form_parts(asked.form, bytes(exchange.body)))
        else:
            exchange.task = asyncio.ensure_future(self._run_large_form(exchange, asked))

    async def _run_large_form(self, exchange: Exchange, asked: _Asked) -> None:
        try:
            parts = await in_thread(lambda: form_parts(asked.form, bytes(exchange.body)))
            exchange.task = None
            self._submit_form(exchange, asked, parts)
        except Exception as error:
            exchange.fail(error)

    def _submit_form(self, exchange: Exchange, asked: _Asked, parts: list[Part]) -> None:
        every = [*asked.query, *parts]
        if not asked.model:
            asked = self._with_model(exchange, asked, every)
        parameters = {**asked.parameters, "torchserve_parts": described(every, self._decodes)}
        self._submit(exchange, asked, [part.value for part in every], parameters)

    def _submit(
        self, exchange: Exchange, asked: _Asked, values: list[bytes], parameters: dict[str, ParameterValue]
    ) -> None:
        """Submit the parts as one row of the input. If the model's first workers are starting, wait for them."""
        try:
            target = self.targets.find(asked.model, asked.version)
        except WorkersStarting as error:
            later = self._submit_later(error.started, exchange, asked, values, parameters)
            exchange.task = asyncio.ensure_future(later)
            return
        if not target.handler:
            params = {"model": asked.model, "version": target.number}
            exchange.route = dataclasses.replace(exchange.route, params=params)
            generate(self.server, exchange)
            return
        identifier = self._context.headers.new_id()
        kind = StreamedPrediction if target.streams else Prediction
        responder = kind(self._context, exchange, identifier)
        inputs = {INPUT: target.tensor(values)}
        request = InferenceRequest(asked.model, inputs, target.number, identifier, (), parameters)
        received = exchange.received() if self.server.tracing else None
        submit(self.server, exchange, received, InFlightRequest(request, responder, target.observers))

    async def _submit_later(
        self,
        started: asyncio.Event,
        exchange: Exchange,
        asked: _Asked,
        values: list[bytes],
        parameters: dict[str, ParameterValue],
    ) -> None:
        try:
            await started.wait()
            exchange.task = None
            self._submit(exchange, asked, values, parameters)
        except Exception as error:
            exchange.fail(error)

    # -- other answers ----------------------------------------------------------------------------------------
    def standing(self, status: int) -> str:
        """Return the header lines of an answer with this status, and count it."""
        self.metrics.count_reply(status)
        headers = self._context.headers
        return headers.lines(headers.new_id())
