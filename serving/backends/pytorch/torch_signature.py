"""Infers the signature of a TorchScript module, because its file says little about it.

A traced module may keep its example inputs. Their shapes and types, and the outputs of a run on torch's `meta` device,
determine the signature. The meta device has shapes without data, so the run computes nothing and reads no weights. Runs with
two other batch sizes show whether the first dimension is free. A scripted module has only the names of its arguments.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from repository.config.signature import Signature, TensorSignature
from serving.backends.pytorch.archive import Archive
from serving.backends.pytorch.tensors import DATATYPES
from serving.backends.pytorch.torch_model import open_torchscript

_META = torch.device("meta")
_PROBES = (2, 3)  # batch sizes other than 1, which could be broadcast and would prove nothing

Example = tuple[tuple[int, ...], torch.dtype]


def torchscript_signature(path: Path, archive: Archive) -> Signature:
    """Return the signature. Unknown shapes are None, and unknown datatypes are ""."""
    module = open_torchscript(path, _META, restore_shapes=archive.has_example)
    names = [argument.name for argument in module.forward.schema.arguments[1:] if not argument.has_default_value()]
    examples = _examples(module, len(names)) if archive.has_example else None
    if examples is None:
        unknown = tuple(TensorSignature(name, "", None) for name in names)
        results_unknown = tuple(TensorSignature(name, "", None) for name in _result_names(module))
        return Signature(unknown, results_unknown, ordered=True, example=True)
    free = _first_dimension_is_free(module, examples)
    results = _run(module, examples) or []
    return Signature(
        tuple(_tensor(name, shape, dtype, free) for name, (shape, dtype) in zip(names, examples, strict=True)),
        tuple(_tensor(name, tuple(value.shape), value.dtype, free) for name, value in results),
        ordered=True,
        example=True,
    )


def certain_part(signature: Signature) -> Signature | None:
    """Return the part of a TorchScript module's signature that does not depend on its example, or None if the outputs are
    unknown. The sizes of the example prove nothing if the module cannot batch or does not run on the meta device.
    """
    if not signature.outputs:
        return None
    if signature.can_batch:
        return signature
    inputs = tuple(tensor._replace(shape=None) for tensor in signature.inputs)
    return replace(signature, inputs=inputs, outputs=tuple(tensor._replace(shape=None) for tensor in signature.outputs))


def _tensor(name: str, shape: tuple[int, ...], dtype: torch.dtype, free: bool) -> TensorSignature:
    return TensorSignature(name, DATATYPES.get(dtype, ""), (-1, *shape[1:]) if free else shape)


def _examples(module: torch.jit.ScriptModule, count: int) -> list[Example] | None:
    """Return shape and dtype of each traced input, from the types that torch restored in the graph."""
    values = list(module.graph.inputs())[1:]
    types = [value.type() for value in values]
    if len(types) != count or not all(type_.isSubtypeOf(torch._C.TensorType.get()) for type_ in types):
        return None
    examples = [(type_.sizes(), type_.dtype()) for type_ in types]
    if any(shape is None or dtype is None for shape, dtype in examples):
        return None
    return [(tuple(shape), dtype) for shape, dtype in examples]


def _first_dimension_is_free(module: torch.jit.ScriptModule, examples: Sequence[Example]) -> bool:
    """Return whether the module takes other batch sizes, and gives every output the batch size of its inputs."""
    if any(not shape for shape, _ in examples) or len({shape[0] for shape, _ in examples}) != 1:
        return False
    for size in _PROBES:
        results = _run(module, [((size, *shape[1:]), dtype) for shape, dtype in examples])
        if not results or any(value.shape[:1] != (size,) for _, value in results):
            return False
    return True


def _run(module: torch.jit.ScriptModule, examples: Sequence[Example]) -> list[tuple[str, torch.Tensor]] | None:
    """Return (name, tensor without data) for each output, or None if the module does not run on the meta device."""
    try:
        with torch.inference_mode():
            result = module(*(torch.empty(shape, dtype=dtype, device=_META) for shape, dtype in examples))
    except Exception:  # for example a constant on another device, an operator without a meta kernel
        return None
    if isinstance(result, torch.Tensor):
        result = (result,)
    named = result.items() if isinstance(result, dict) else ((f"OUTPUT__{i}", value) for i, value in enumerate(result))
    flat = list(named)
    return flat if all(isinstance(value, torch.Tensor) for _, value in flat) else None


def _result_names(module: torch.jit.ScriptModule) -> list[str]:
    """Return Triton's ordinal names for the outputs of the return type."""
    kind = module.forward.schema.returns[0].type
    count = len(kind.elements()) if kind.kind() == "TupleType" else 1
    return [f"OUTPUT__{index}" for index in range(count)]
