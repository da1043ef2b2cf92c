"""ONNX -> ONNX with weights in INT8: ONNX Runtime's dynamic quantisation, which needs no data. Inputs and outputs stay."""

from onnx_source import answered, checked
from recipe import Refused, Work, describe, main

PACKAGES = "onnx onnxruntime onnxruntime-gpu numpy"
QUANTISED = ("MatMul", "Gemm", "Conv", "Attention", "LSTM", "Gather", "EmbedLayerNormalization")


def convert(work: Work) -> None:
    """Convert the ONNX file of the source."""
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    model = checked(work)
    weights = {one.name for one in model.graph.initializer} | {
        node.output[0] for node in model.graph.node if node.op_type == "Constant"
    }
    if not any(node.op_type in QUANTISED and weights & set(node.input) for node in model.graph.node):
        raise Refused(
            "the model has no weights of a matrix or convolution, so that INT8 would make it no smaller",
            "keep the model as it is: trees and lookups are not quantised",
        )
    answered(work, model)
    path, plain = work.path("model.onnx"), work.target / "plain.onnx"
    # Shapes that an exporter wrote beside the values contradict those that quantisation infers.
    del model.graph.value_info[:]
    onnx.save(model, plain)
    kind = QuantType.QUInt8 if work.options.get("weights") == "UINT8" else QuantType.QInt8
    quantize_dynamic(plain, path, weight_type=kind, per_channel=bool(work.options.get("per_channel", True)))
    before, after = plain.stat().st_size, path.stat().st_size
    plain.unlink()
    work.note(precision="INT8", bytes_before=before, bytes_after=after)
    if after >= before:
        work.warn("the file in INT8 is not smaller than before")
    describe(work, path)


if __name__ == "__main__":
    main(convert, PACKAGES)
