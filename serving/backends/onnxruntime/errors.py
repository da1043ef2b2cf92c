"""Turns ONNX Runtime's errors into sentences without paths, and checks that it supports a model's versions."""

import re

import onnxruntime as ort

from serving.backends.onnxruntime.onnx_file import OnnxModel
from serving.core.errors import ServingError, internal, invalid, without_addresses
from serving.core.varints import length_delimited, varint

_STATUS = re.compile(r"^\[ONNXRuntimeError\] : \d+ : [A-Z_]+ : ")
# Matches the origin before a message: "/onnxruntime_src/.../model.cc:256 onnxruntime::Model::Model(const T&, ...) "
_ORIGIN = re.compile(r"/\S+:\d+ [^()]*\((?:[^()]|\([^()]*\))*\)(?: const)? ?")
_LOAD = re.compile(r"Load model from .*? failed:")
_ADVICE = re.compile(r"for the following indices|Please fix either the inputs/outputs or the model\.?")
_MISFIT = re.compile(r"broadcast|dimension|shape|element count", re.IGNORECASE)
_PATH = re.compile(r"(?<![\w.])/(?:[\w.+-]+/)+[\w.+-]*")
_OPSET = re.compile(
    r"Opset (\d+) is under development.*Current official support for domain (\S+) is till opset (\d+)", re.S
)
_LOCALE = re.compile(r"construct locale with name:\s*([\w.@-]+?):")
_KERNEL = re.compile(r"Could not find an implementation for (\w+)\(\d+\) node with name '([^']*)'")
_IR = re.compile(r"Unsupported model IR version: (\d+), max supported IR version: (\d+)")


def sentence(error: Exception) -> str:
    """Return the text of an error without status codes, C++ signatures, paths, addresses and line breaks."""
    text = _STATUS.sub("", str(error))
    for pattern in (_LOAD, _ORIGIN, _ADVICE, _PATH):
        text = pattern.sub("", text)
    text = without_addresses(text)
    return " ".join(text.split()).rstrip(". ") or type(error).__name__


def session_error(error: Exception) -> ServingError:
    """Return the error of a model that ONNX Runtime refuses to load."""
    text = str(error)
    known = _version_problem(text) or _exporters_problem(text)
    return invalid(known or f"ONNX Runtime cannot load the model: {sentence(error)}")


def _exporters_problem(text: str) -> str:
    """Return a sentence with advice for a known fault of an exporter; "" for any other error."""
    if "(ZipMap)" in text:
        return (
            "ONNX Runtime cannot run the model's ZipMap, which makes maps of its probabilities: export it without, from "
            "scikit-learn with to_onnx(model, X[:1], options={'zipmap': False})"
        )
    locale = _LOCALE.search(text)
    if locale:
        return (
            f"the model lowers or raises text by the locale {locale[1]}, which this machine lacks: install it there, or name "
            "one that it has in the exporter's options"
        )
    kernel = _KERNEL.search(text)
    if kernel:
        return (
            f"ONNX Runtime cannot run operator {kernel[1]} (node '{kernel[2]}') on the CPU with the datatype that the model "
            "gives it: export the model in FP32, or serve it on a GPU"
        )
    return ""


def run_error(error: Exception, shapes_vary: bool) -> ServingError:
    """Return INVALID_ARG if the inputs are wrong (by the status, or because free dimensions do not fit), else INTERNAL."""
    if type(error).__name__ == "InvalidArgument" or (shapes_vary and _MISFIT.search(str(error))):
        return invalid(f"the model refuses the inputs: {sentence(error)}")
    return internal(f"the model failed: {sentence(error)}")


def unsupported_version(model: OnnxModel) -> str:
    """Return a sentence with both versions if this runtime is too old for the file, or else "".

    The function loads an empty model with the same versions, because the runtime has no call that returns its versions.
    """
    try:
        ort.InferenceSession(_empty_model(model), providers=["CPUExecutionProvider"])
    except Exception as error:
        return _version_problem(str(error))
    return ""


def _version_problem(text: str) -> str:
    match = _OPSET.search(text)
    if match:
        opset, domain, newest = match.groups()
        return (
            f"the model needs opset {opset} of {domain}, but ONNX Runtime {ort.__version__} runs at most opset {newest}"
        )
    match = _IR.search(text)
    if match:
        return f"the model has ONNX IR version {match[1]}, but ONNX Runtime {ort.__version__} reads at most {match[2]}"
    return ""


def _empty_model(model: OnnxModel) -> bytes:
    """Return a ModelProto: ir_version = 1, graph = 7 (with only a name), opset_import = 8 (domain = 1, version = 2)."""
    opsets = [
        length_delimited(8, length_delimited(1, domain.encode()) + b"\x10" + varint(version))
        for domain, version in model.opsets.items()
    ]
    return b"\x08" + varint(model.ir_version) + length_delimited(7, length_delimited(2, b"empty")) + b"".join(opsets)
