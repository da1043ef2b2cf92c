"""The message that describes a handler to its child process."""

from repository.core.json_types import Json
from serving.backends.channel.messages import Initialize


class InitializeTorchserve(Initialize):
    """`folder` is the folder of the unpacked archive. It contains `model_file` and `settings_file`, which may be "" for none.

    inputs, outputs: the declared tensors, or None for the default tensor, `data`. as_parts: whether each declared input has
    bytes and becomes a part with its name.
    """

    packages: str  # the folder of the packages in the model's requirements.txt; "" for none
    decoupled: bool
    name: str  # the name of the model
    handler: str
    envelope: str
    manifest: dict[str, Json]
    settings: dict[str, Json]  # model-config.yaml
    settings_file: str
    batch_size: int
    gpu: int | None
    limit_max_image_pixels: bool
    metrics: bool  # whether the handler's metrics are kept
    metrics_config: str  # a metrics.yaml; "" for TorchServe's own
    metrics_auto_detect: bool
    inputs: list[str] | None
    as_parts: bool
    outputs: list[tuple[str, str]] | None  # name and datatype of the V2 protocol
    batched: bool  # whether tensors have a batch dimension
