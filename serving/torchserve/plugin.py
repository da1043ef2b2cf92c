"""The parts that TorchServe adds to the server."""

from serving.plugins.plugin import Plugin

PLUGIN = Plugin(
    flags="serving.torchserve.flags:TorchServeFlags",
    remotes={"torchserve": "serving.torchserve.remote:TorchServe"},
    log_formats={"TorchServe": "serving.torchserve.telemetry.log_format:FORMAT"},
    compiled=(
        "serving.torchserve.apis.answers",
        "serving.torchserve.apis.grpc_inference",
        "serving.torchserve.apis.inference",
        "serving.torchserve.apis.prediction",
        "serving.torchserve.apis.replies",
        "serving.torchserve.apis.targets",
        "serving.torchserve.telemetry.metrics",
    ),
)
