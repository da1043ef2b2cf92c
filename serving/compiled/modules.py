"""The names of the compiled modules, and the folder of their build."""

import hashlib
import sys
import sysconfig
from pathlib import Path

from serving.plugins.table import PLUGINS

ROOT = Path(__file__).resolve().parents[2]
BUILDS = Path(".cache", "compiled")  # relative to the folder of the packages
# The modules of base classes are listed too, unless these classes may have interpreted subclasses or are Python's own.
MODULES = (
    "repository.core.histogram",
    "serving.backends.channel.packet_channel",
    "serving.backends.channel.shared_memory",
    "serving.backends.channel.tensors",
    "serving.backends.child.codec",
    "serving.backends.child.open_requests",
    "serving.backends.child.results",
    "serving.backends.onnxruntime.output_buffers",
    "serving.captures.intake",
    "serving.core.batch",
    "serving.core.client_headers",
    "serving.core.datatypes",
    "serving.core.grpc_parameters",
    "serving.core.in_flight",
    "serving.core.request",
    "serving.core.response",
    "serving.core.rollout_arm",
    "serving.core.tensor_check",
    "serving.execution.execution_times",
    "serving.execution.instance",
    "serving.frontends.grpc.call",
    "serving.frontends.grpc.call_headers",
    "serving.frontends.grpc.health",
    "serving.frontends.grpc.infer",
    "serving.frontends.grpc.message_stream",
    "serving.frontends.grpc.methods",
    "serving.frontends.grpc.reflection",
    "serving.frontends.grpc.request_decoder",
    "serving.frontends.grpc.response_encoder",
    "serving.frontends.http1.connection",
    "serving.frontends.http1.exchange",
    "serving.frontends.http2.connection",
    "serving.frontends.http2.forwarding",
    "serving.frontends.http2.frame_reader",
    "serving.frontends.http2.header_decompression",
    "serving.frontends.http2.headers",
    "serving.frontends.http2.peer_limits",
    "serving.frontends.http2.stream",
    "serving.frontends.rest.infer",
    "serving.frontends.rest.infer_header",
    "serving.frontends.rest.infer_request",
    "serving.frontends.rest.infer_response",
    "serving.frontends.rest.json_input",
    "serving.frontends.rest.json_output",
    "serving.frontends.rest.response_outline",
    "serving.models.model",
    "serving.models.model_repository_manager",
    "serving.models.model_responses",
    "serving.models.sequence_route",
    "serving.resources.loop_time",
    "serving.scheduling.base",
    "serving.scheduling.batch_rules",
    "serving.scheduling.dynamic_batch",
    "serving.scheduling.instance_scheduler",
    "serving.scheduling.queue",
    "serving.scheduling.sequence_batch",
    "serving.telemetry.noted_requests",
    "serving.telemetry.statistics",
    "serving.usage.accounts",
    "serving.traffic.arms",
    "serving.traffic.figures",
    "serving.traffic.split",
    "serving.workers.program.grpc_methods",
    *(module for plugin in PLUGINS for module in plugin.compiled),
)


def fingerprint(root: Path = ROOT) -> str:
    """Return a hash of this Python and of all sources of both packages, because types and constants of any module may be
    compiled into other modules."""
    found = hashlib.sha256(f"{sys.version} {sysconfig.get_config_var('SOABI')}".encode())
    for package in ("repository", "serving"):
        for path in sorted((root / package).rglob("*.py")):
            content = path.read_bytes()
            found.update(f"{path.relative_to(root)} {len(content)}\n".encode())
            found.update(content)
    return found.hexdigest()[:16]


def build_folder(root: Path = ROOT) -> Path:
    """Return the folder for the build of these sources."""
    return root / BUILDS / fingerprint(root)
