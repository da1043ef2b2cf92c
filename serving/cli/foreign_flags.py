"""tritonserver's flags for what this server does not have: taken with a warning where they only tune it, refused otherwise."""

import argparse
from typing import Any

# Taken, so that tritonserver's command lines work, and warned of.
WITHOUT_EFFECT = (
    "--http-thread-count",
    "--grpc-infer-thread-count",
    "--grpc-infer-allocation-pool-size",
    "--grpc-max-response-pool-size",
    "--pinned-memory-pool-byte-size",
    "--cuda-memory-pool-byte-size",
    "--cuda-virtual-address-size",
    "--enable-peer-access",
    "--min-supported-compute-capability",
    "--backend-directory",
    "--repoagent-directory",
    "--cache-directory",
    "--buffer-manager-thread-count",
    "--sagemaker-port",
    "--sagemaker-safe-port-range",
    "--sagemaker-thread-count",
    "--vertex-ai-port",
    "--vertex-ai-thread-count",
    "--vertex-ai-default-model",
)
# What they ask for would silently be missing, unless they say false.
REFUSED = {
    "--allow-sagemaker": "this server has no routes for SageMaker; give false, and a proxy that has /ping and /invocations",
    "--allow-vertex-ai": "this server has no routes for Vertex AI; give false, and let it use those of V2",
}


def add_foreign_flags(parser: argparse.ArgumentParser) -> None:
    """Those that were given and ignored are in `ignored`, or it is None."""
    for flag in WITHOUT_EFFECT:
        parser.add_argument(flag, nargs="?", dest="ignored", action=_Ignored, help=argparse.SUPPRESS)
    for flag in REFUSED:
        parser.add_argument(flag, nargs="?", dest="ignored", action=_Refused, help=argparse.SUPPRESS)


class _Ignored(argparse.Action):
    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        namespace.ignored = [*(namespace.ignored or []), option_string]


class _Refused(argparse.Action):
    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        if str(values).lower() not in ("false", "0", "off", "no"):
            parser.error(f"{option_string}: {REFUSED[str(option_string)]}")
