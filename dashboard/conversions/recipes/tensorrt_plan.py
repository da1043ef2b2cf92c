"""ONNX -> a TensorRT plan for the GPU of this machine, by the product's own TensorRT.

Networks are strongly typed, as TensorRT 11 has them alone: the datatype of each tensor is the ONNX file's. So the file is
converted to FP16 first where FP16 is asked for, and a file with QuantizeLinear and DequantizeLinear stays one in INT8.
Source: TensorRT developer guide, "Strongly Typed Networks", "Working with Dynamic Shapes".
"""

from pathlib import Path
from typing import Any

from onnx_source import answered, checked
from recipe import Refused, Work, describe, main, tensor

PACKAGES = "tensorrt-cu13 tensorrt onnx onnxruntime onnxruntime-gpu numpy"
BATCH = 32  # the largest, if neither option nor config.pbtxt names one
_EXAMPLE = '{"tokens": [[1, 8], [8, 64], [32, 256]]}'
_MIB = 1 << 20

Range = tuple[list[int], list[int], list[int]]
"""The least, the best and the largest shape of an input."""


def convert(work: Work) -> None:
    """Build a plan of the ONNX file of the source."""
    model = checked(work)
    inner = {one.name for one in model.graph.initializer}
    inputs = [tensor(value) for value in model.graph.input if value.name not in inner]
    if texts := [one["name"] for one in inputs if one["datatype"] == "BYTES"]:
        raise Refused(f"input '{texts[0]}' is text, which TensorRT does not have", "serve the ONNX file itself")
    ranges = ranges_of(work, inputs)
    given = {**work.options.get("inputs", {})}
    for name, (_, best, _) in ranges.items():  # TensorRT measures with the best shape, and the plan is compared at it
        given[name] = {"shape": best, **given.get(name, {})}
    work.options["inputs"] = given
    answered(work, model)
    precision = work.options.get("precision", "FP16")
    source = _in_fp16(work, model) if precision == "FP16" else work.file(".onnx")
    work.path("model.plan").write_bytes(build(work, source, ranges, tf32=precision == "TF32"))
    describe(work, work.file(".onnx"))
    # TF32 multiplies with as many bits as FP16.
    work.note(format="plan", **({} if precision == "FP32" else {"precision": "FP16"}))


def _in_fp16(work: Work, model: Any) -> Path:
    import onnx
    from onnxruntime.transformers.float16 import convert_float_to_float16

    path = work.target / "fp16.onnx"
    onnx.save(convert_float_to_float16(model, keep_io_types=True), path)
    return path


# -- shapes ------------------------------------------------------------------------------------------------------------
def ranges_of(work: Work, inputs: list[dict[str, Any]]) -> dict[str, Range]:
    """Return the range of each input that has a dimension of any size: the option's, or what config.pbtxt and the file say."""
    config = config_of(work)
    asked = work.options.get("shapes") or {}
    if unknown := sorted(asked.keys() - {one["name"] for one in inputs}):
        names = ", ".join(one["name"] for one in inputs)
        raise Refused(f"the model has no input '{unknown[0]}'", f"name its inputs in the option 'shapes': {names}")
    dynamic = [one for one in inputs if -1 in one["shape"]]
    return {
        one["name"]: _checked(one, asked[one["name"]]) if one["name"] in asked else _range(work, one, config)
        for one in dynamic
    }


def config_of(work: Work) -> Any:
    """Return the ModelConfig of the source's config.pbtxt; an empty one without the file."""
    from google.protobuf import text_format
    from tritonclient.grpc.model_config_pb2 import ModelConfig

    path = next((path for path in work.files() if path.name == "config.pbtxt"), None)
    try:
        return text_format.Parse(path.read_text(), ModelConfig()) if path else ModelConfig()
    except (text_format.ParseError, UnicodeDecodeError) as error:
        raise Refused(f"config.pbtxt cannot be read ({error})", "correct it, or upload the model without it") from error


def _range(work: Work, one: dict[str, Any], config: Any) -> Range:
    """Return the range of an input whose first dimension is the batch, and whose others config.pbtxt may fix."""
    sizes = list(one["shape"])
    most = int(work.options.get("max_batch_size") or config.max_batch_size or 0)
    declared = next((list(entry.dims) for entry in config.input if entry.name == one["name"]), [])
    whole = [-1, *declared] if config.max_batch_size else declared
    if len(whole) == len(sizes):
        sizes = [own if own > 0 else size for own, size in zip(whole, sizes, strict=True)]
    if any(size < 1 for size in sizes[1:]):
        raise Refused(
            f"input '{one['name']}' has the shape {one['shape']}, and TensorRT needs to know how large each dimension may be",
            f"give the least, the best and the largest shape in the option 'shapes', such as {_EXAMPLE}",
        )
    if sizes[0] > 0:
        return sizes, sizes, sizes
    most = most or BATCH
    best = max((size for size in config.dynamic_batching.preferred_batch_size if size <= most), default=most)
    return [1, *sizes[1:]], [best, *sizes[1:]], [most, *sizes[1:]]


def _checked(one: dict[str, Any], asked: Any) -> Range:
    """Return a range of the option `shapes`. Raises Refused unless it has three shapes that the input takes, in order."""
    own = one["shape"]
    fits = (
        isinstance(asked, list)
        and len(asked) == 3
        and all(isinstance(shape, list) and len(shape) == len(own) for shape in asked)
        and all(type(size) is int for shape in asked for size in shape)
        and all(0 < a <= b <= c and (size == -1 or a == c == size) for a, b, c, size in zip(*asked, own, strict=True))
    )
    if not fits:
        raise Refused(
            f"the option 'shapes' has {asked} for input '{one['name']}', whose shape is {own}",
            f"give the least, the best and the largest shape, such as {_EXAMPLE}",
        )
    return asked[0], asked[1], asked[2]


# -- TensorRT ----------------------------------------------------------------------------------------------------------
def build(work: Work, source: Path, ranges: dict[str, Range], *, tf32: bool) -> bytes:
    """Return the plan of an ONNX file, with one optimisation profile. Raises Refused with TensorRT's own reason."""
    import tensorrt as trt

    logger = _logger(trt)
    try:
        builder = trt.Builder(logger)
    except (TypeError, RuntimeError) as error:
        raise Refused(
            f"TensorRT {trt.__version__} finds no GPU that it can use ({logger.last_error or error})",
            "convert on a machine with an NVIDIA GPU and a driver for it",
        ) from error
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser = trt.OnnxParser(network, logger)
    if not parser.parse_from_file(str(source)):
        said = parser.get_error(0).desc() if parser.num_errors else logger.last_error
        raise Refused(
            f"TensorRT {trt.__version__} cannot read the model ({_short(said)})", "serve the ONNX file itself"
        )
    settings = builder.create_builder_config()
    if not tf32:
        settings.clear_flag(trt.BuilderFlag.TF32)
    if most := int(work.options.get("workspace_mib") or 0):
        settings.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, most * _MIB)
    if ranges:
        profile = builder.create_optimization_profile()
        for name, shapes in ranges.items():
            profile.set_shape(name, *map(tuple, shapes))
        settings.add_optimization_profile(profile)
    plan = builder.build_serialized_network(network, settings)
    if plan is None:
        raise Refused(
            f"TensorRT {trt.__version__} cannot build a plan ({_short(logger.last_error)})",
            "give it more workspace or smaller shapes, or serve the ONNX file itself",
        )
    return bytes(plan)


def _logger(trt: Any) -> Any:
    class LastError(trt.ILogger):  # type: ignore[misc]
        """Prints warnings, and keeps the last error for the report."""

        def __init__(self) -> None:
            trt.ILogger.__init__(self)
            self.last_error = ""

        def log(self, severity: Any, message: str) -> None:
            levels = trt.ILogger.Severity
            if severity in (levels.ERROR, levels.INTERNAL_ERROR):
                self.last_error = message
            if severity in (levels.WARNING, levels.ERROR, levels.INTERNAL_ERROR):
                print(message, flush=True)

    return LastError()


def _short(text: str) -> str:
    return " ".join(text.split())[:300] or "it gives no reason"


if __name__ == "__main__":
    main(convert, PACKAGES)
