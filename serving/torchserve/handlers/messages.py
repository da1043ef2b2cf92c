"""What the child process is told of the handler that it runs."""

from repository.core.json_types import Json
from serving.backends.channel.messages import Initialize


class InitializeTorchserve(Initialize):
    """`folder` is that of the unpacked archive, `model_file` and `settings_file` lie in it, "" where there is none.

    inputs, outputs: the declared tensors; None where it is the one, `data`, that is completed where none is declared. as_parts:
    each declared input is one of bytes, and a part by its name.
    """

    packages: str  # a folder with what the model's requirements.txt names; "" for none
    decoupled: bool
    name: str  # of the model
    handler: str
    envelope: str
    manifest: dict[str, Json]
    settings: dict[str, Json]  # model-config.yaml
    settings_file: str
    batch_size: int
    gpu: int | None
    limit_max_image_pixels: bool
    metrics: bool  # what the handler measures is wanted
    metrics_config: str  # a metrics.yaml; "" for TorchServe's own
    metrics_auto_detect: bool
    inputs: list[str] | None
    as_parts: bool
    outputs: list[tuple[str, str]] | None  # name and datatype of the V2 protocol
    batched: bool  # tensors have a batch dimension
