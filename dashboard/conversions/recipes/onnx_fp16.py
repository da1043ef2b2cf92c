"""ONNX -> ONNX in FP16: weights and computation take half the memory. Inputs and outputs keep their datatypes."""

from onnx_source import answered, checked
from recipe import Work, describe, main

PACKAGES = "onnx onnxruntime onnxruntime-gpu numpy"


def convert(work: Work) -> None:
    """Convert the ONNX file of the source."""
    import onnx
    from onnxruntime.transformers.float16 import convert_float_to_float16

    model = checked(work)
    answered(work, model)
    path = work.path("model.onnx")
    blocked = list(work.options.get("keep") or [])
    onnx.save(convert_float_to_float16(model, keep_io_types=True, node_block_list=blocked), path)
    describe(work, path)
    work.note(precision="FP16")


if __name__ == "__main__":
    main(convert, PACKAGES)
