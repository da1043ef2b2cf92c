"""The parameters `torchserve.*` of a model's configuration, and how workers become instances of the model.

torchserve.handler                  the handler, in place of the handler in the manifest
torchserve.response_timeout_s       the longest time for a batch; 120 if neither this nor the archive gives a time
torchserve.startup_timeout_s        the longest time for a worker to load the model; 120 by the same rule
torchserve.min_workers, max_workers the requested numbers of workers; the actual number is the number of instances
torchserve.version                  the archive's own modelVersion, for people; the server never reads it
torchserve.service_envelope         the envelope, in place of that in the manifest: body, json, kserve, kservev2
torchserve.parts                    true: each declared input is one element of bytes; the handler gets it as a part by its name
torchserve.limit_max_image_pixels   false lets handlers open images of any size
torchserve.metrics_mode             "prometheus" for metrics of handlers at /metrics, "log" or "legacy" for lines in a file
torchserve.metrics_config           a metrics.yaml with the metrics that handlers may record; the default is TorchServe's file
torchserve.model_metrics_auto_detect  true to allow metrics that no file names, too
torchserve.workflow                 for an ensemble: the specification of its workflow, as JSON
torchserve.install_py_dep_per_model true to install an archive's requirements.txt into a separate environment
"""

from tritonclient.grpc.model_config_pb2 import ModelConfig, ModelInstanceGroup

from repository.torchserve.model_archive import ModelSettings

PREFIX = "torchserve."
HANDLER = PREFIX + "handler"
RESPONSE_TIMEOUT = PREFIX + "response_timeout_s"
STARTUP_TIMEOUT = PREFIX + "startup_timeout_s"
MIN_WORKERS = PREFIX + "min_workers"
MAX_WORKERS = PREFIX + "max_workers"
VERSION = PREFIX + "version"
ENVELOPE = PREFIX + "service_envelope"
PARTS = PREFIX + "parts"
LIMIT_IMAGES = PREFIX + "limit_max_image_pixels"
METRICS_MODE = PREFIX + "metrics_mode"
METRICS_CONFIG = PREFIX + "metrics_config"
METRICS_AUTO_DETECT = PREFIX + "model_metrics_auto_detect"
WORKFLOW = PREFIX + "workflow"
INSTALL = PREFIX + "install_py_dep_per_model"
KNOWN = {
    *(HANDLER, RESPONSE_TIMEOUT, STARTUP_TIMEOUT, MIN_WORKERS, MAX_WORKERS, VERSION, ENVELOPE, LIMIT_IMAGES),
    *(PARTS, METRICS_MODE, METRICS_CONFIG, METRICS_AUTO_DETECT, INSTALL, "EXECUTION_ENV_PATH"),
}


def add_workers(config: ModelConfig, workers: int, settings: ModelSettings, gpus: int) -> None:
    """Distribute workers over the GPUs round-robin, as TorchServe does. gpus: the number of GPUs that may be used."""
    if settings.device_type == "cpu" or not gpus:
        config.instance_group.add(name=config.name, kind=ModelInstanceGroup.KIND_CPU, count=workers)
        return
    devices = list(settings.device_ids) or list(range(gpus))
    each, more = divmod(workers, len(devices))
    for count, where in ((each + 1, devices[:more]), (each, devices[more:])):
        if count and where:
            name = f"{config.name}_{len(config.instance_group)}" if config.name else ""
            config.instance_group.add(name=name, kind=ModelInstanceGroup.KIND_GPU, count=count, gpus=where)
