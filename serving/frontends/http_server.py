"""The HTTP listener: KServe V2's REST routes with Triton's extensions, and the OpenAI-compatible routes.

Source: KServe V2 REST; Triton docs/protocol/extension_*.md; OpenAI API reference.
"""

from collections.abc import Sequence
from functools import partial

from serving.cli.option_values import header_pattern
from serving.cli.options import Options
from serving.cli.tls import TlsFiles, server_context
from serving.frontends.http1.context import Context, Limits
from serving.frontends.http1.listener import Listener
from serving.frontends.http1.message import error_reply
from serving.frontends.http1.routes import Route, RouteTable
from serving.frontends.openai import errors as openai_errors
from serving.frontends.openai import routes as openai
from serving.frontends.rest import handlers as v2
from serving.frontends.rest import settings, shared_memory
from serving.frontends.rest.generate import generate, generate_stream
from serving.frontends.rest.infer import infer
from serving.frontends.rest.mismatches import forget_mismatches, mismatches
from serving.frontends.rest.noted import noted_requests
from serving.frontends.rest.sample import sample
from serving.frontends.rest.traffic import traffic
from serving.frontends.shared.authorisation import Authoriser
from serving.server.inference_server import InferenceServer

MODEL = "/v2/models/{model}[/versions/{version}]"
REPOSITORY = "/v2/repository[/{repository}]"
SYSTEM = "/v2/systemsharedmemory"
CUDA = "/v2/cudasharedmemory"

ROUTES = (
    Route("GET", "/v2", "metadata", v2.server_metadata),
    Route("GET", "/v2/health/live", "health", v2.server_live),
    Route("GET", "/v2/health/ready", "health", v2.server_ready),
    Route("GET", "/v2/models/stats", "statistics", v2.model_statistics),
    Route("POST", f"{MODEL}/infer", "inference", infer, large=True),
    Route("POST", f"{MODEL}/generate", "inference", generate, large=True),
    Route("POST", f"{MODEL}/generate_stream", "inference", generate_stream, large=True),
    Route("GET", "/v1/models", "metadata", openai.models),
    Route("GET", "/v1/models/{model}", "metadata", openai.model),
    Route("POST", "/v1/completions", "inference", openai.completions, large=True),
    Route("POST", "/v1/chat/completions", "inference", openai.chat_completions, large=True),
    Route("GET", MODEL, "metadata", v2.model_metadata),
    Route("GET", f"{MODEL}/ready", "health", v2.model_ready),
    Route("GET", f"{MODEL}/config", "model-config", v2.model_config),
    Route("GET", f"{MODEL}/stats", "statistics", v2.model_statistics),
    Route("POST", f"{REPOSITORY}/index", "model-repository", v2.repository_index),
    Route("POST", f"{REPOSITORY}/models/{{model}}/load", "model-repository", v2.load_model, large=True),
    Route("POST", f"{REPOSITORY}/models/{{model}}/unload", "model-repository", v2.unload_model),
    Route("GET", f"{SYSTEM}[/region/{{region}}]/status", "shared-memory", shared_memory.system_status),
    Route("POST", f"{SYSTEM}/region/{{region}}/register", "shared-memory", shared_memory.system_register),
    Route("POST", f"{SYSTEM}[/region/{{region}}]/unregister", "shared-memory", shared_memory.system_unregister),
    Route("GET", f"{CUDA}[/region/{{region}}]/status", "shared-memory", shared_memory.cuda_status),
    Route("POST", f"{CUDA}/region/{{region}}/register", "shared-memory", shared_memory.cuda_register),
    Route("POST", f"{CUDA}[/region/{{region}}]/unregister", "shared-memory", shared_memory.cuda_unregister),
    Route("POST", "/v2/slipway/models/{model}/load/break_off", "model-repository", v2.break_off_load),
    Route("POST", "/v2/slipway/repository/unloads", "model-repository", v2.confirm_unloads),
    Route("GET", "/v2/slipway/requests", "model-repository", noted_requests),
    Route("POST", "/v2/slipway/models/{model}/sample", "model-repository", sample),
    Route("GET", "/v2/slipway/models/{model}/traffic", "model-repository", traffic),
    Route("GET", "/v2/slipway/models/{model}/traffic/mismatches", "model-repository", mismatches),
    Route("DELETE", "/v2/slipway/models/{model}/traffic/mismatches", "model-repository", forget_mismatches),
    Route("GET", "/v2/logging", "logging", settings.logging),
    Route("POST", "/v2/logging", "logging", settings.logging),
    Route("GET", "/v2[/models/{model}]/trace/setting", "trace", settings.trace),
    Route("POST", "/v2[/models/{model}]/trace/setting", "trace", settings.trace),
)

# prefix of a path -> the function that makes its error replies; errors of other paths are {"error": message}
ERROR_REPLIES = {openai_errors.PREFIX: partial(error_reply, body=openai_errors.error_object)}


class HttpServer:
    """The HTTP frontend; see frontend.Frontend."""

    def __init__(
        self,
        server: InferenceServer,
        options: Options,
        authoriser: Authoriser,
        limits: Limits | None = None,
    ) -> None:
        self._server = server
        self._options = options
        self._authoriser = authoriser
        self._limits = limits
        self._listener: Listener | None = None
        self.address = ("", 0)

    async def start(self) -> None:
        options = self._options
        self._listener = make_listener(self._server, options, self._authoriser, self._limits)
        tls = server_context(TlsFiles.of_http(options), "http/1.1")
        self.address = await self._listener.start(options.http_address, options.http_port, tls, options.reuse_http_port)

    async def drain(self) -> None:
        if self._listener is not None:
            await self._listener.drain()

    async def close(self) -> None:
        if self._listener is not None:
            await self._listener.close()


def make_listener(
    server: InferenceServer,
    options: Options,
    authoriser: Authoriser,
    limits: Limits | None = None,
    routes: Sequence[Route[InferenceServer]] = ROUTES,
) -> Listener:
    """Return a listener for the routes. The caller starts it."""
    forwarded = header_pattern(options.http_header_forward_pattern)
    context = Context(authoriser, server.request_memory, limits or Limits.from_options(options), forwarded)
    return Listener(RouteTable(routes, server, options.http_max_input_size, ERROR_REPLIES), context)
