"""Loads each kind of PyTorch file into one form that an instance can call.

torch's warning that TorchScript is deprecated is silenced, because a server cannot do anything about it.
"""

import json
import linecache
import logging
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from serving.backends.pytorch.archive import Archive, Json, Kind, read_archive
from serving.core.devices import Device
from serving.core.errors import ServingError, internal, invalid, unavailable

if TYPE_CHECKING:
    from torch.utils._pytree import TreeSpec

_PATH = re.compile(r"(?<![\w.])/(?:[\w.+-]+/)+[\w.+-]*")
_RAISED = re.compile(r"^(?:[\w.]*(?:Error|Exception): )+(.*)$", re.MULTILINE)
_INPUT_FAULT = re.compile(
    r"must match|mismatch|cannot be multiplied|is invalid for input|broadcast|same reduction dim|Expected .* (size|dim)"
)


Call = Callable[..., object]
"""A model's forward: it takes tensors or lists of strings, and returns the model's result."""


@dataclass(frozen=True, slots=True)
class TorchModel:
    """A loaded model. `call` takes the tensors in the order of `arguments`. Its result is read by name or by position.

    written: the positions of arguments that the model overwrites. takes_dict: the only argument is a Dict[str, Tensor].
    """

    call: Call
    arguments: tuple[str, ...]
    required: int
    written: frozenset[int] = frozenset()
    takes_dict: bool = False


def load_model(path: Path, device: Device) -> TorchModel:
    """Load a model of any kind onto a device. Raises INVALID_ARG if the model does not load."""
    archive = read_archive(path)
    loader = {
        Kind.TORCHSCRIPT: _load_torchscript,
        Kind.TORCH_EXPORT: _load_export,
        Kind.AOTINDUCTOR: _load_aotinductor,
    }[archive.kind]
    try:
        return loader(path, archive, torch_device(device))
    except ServingError:
        raise
    except Exception as error:
        raise invalid(f"PyTorch {torch.__version__} cannot load the model: {sentence(error)}") from None


def torch_device(device: Device) -> torch.device:
    return torch.device("cuda", device.id) if device.kind == "gpu" else torch.device("cpu")


# -- TorchScript -------------------------------------------------------------------------------------------------------
def open_torchscript(path: Path, device: torch.device, restore_shapes: bool = False) -> torch.jit.ScriptModule:
    """Load a TorchScript file in evaluation mode, without the deprecation warning.

    The filter for that message stays, because models load on several threads and `catch_warnings` is not thread-safe.
    """
    warnings.filterwarnings("ignore", r"`torch\.jit\.\w+` is deprecated", DeprecationWarning)
    module: torch.jit.ScriptModule = torch.jit.load(str(path), map_location=device, _restore_shapes=restore_shapes)
    return module.eval()


def _load_torchscript(path: Path, archive: Archive, device: torch.device) -> TorchModel:
    module = open_torchscript(path, device)
    arguments = module.forward.schema.arguments[1:]  # the first is self
    tensors = [argument for argument in arguments if _carries_tensor(argument)]
    takes_dict = len(arguments) == 1 and str(arguments[0].type).startswith("Dict[str, Tensor")
    required = sum(not argument.has_default_value() for argument in tensors)
    return TorchModel(
        module, tuple(argument.name for argument in tensors), required, _written_arguments(module), takes_dict
    )


def _carries_tensor(argument: torch._C.Argument) -> bool:
    """Return whether an argument of forward is an input. Raises INVALID_ARG if the argument has a wrong type and no default."""
    kind = str(argument.type)
    if kind in ("Tensor", "Optional[Tensor]", "List[str]") or kind.startswith("Dict[str, Tensor"):
        return True
    if argument.has_default_value():
        return False
    raise invalid(f"forward's argument '{argument.name}' is a {kind}; expected a Tensor or a List[str]")


def _written_arguments(module: torch.jit.ScriptModule) -> frozenset[int]:
    graph = module.inlined_graph
    aliases = graph.alias_db()
    return frozenset(index for index, value in enumerate(list(graph.inputs())[1:]) if aliases.has_writers(value))


# -- torch.export ------------------------------------------------------------------------------------------------------
def _load_export(path: Path, archive: Archive, device: torch.device) -> TorchModel:
    program = _export_program(path)
    if device.type == "cuda":
        from torch.export.passes import move_to_device_pass

        program = move_to_device_pass(program, device)
    module = program.module()
    signature = program.graph_signature
    call = program.module_call_graph[0].signature
    names = tuple(call.forward_arg_names or ())
    flat = len(names) == len(signature.user_inputs) and not call.in_spec.child(1).num_leaves
    if not flat:
        names = tuple(str(name) for name in signature.user_inputs)
    written = frozenset(list(signature.user_inputs).index(name) for name in signature.user_inputs_to_mutate.values())
    return TorchModel(module if flat else _unflattened(module, call.in_spec), names, len(names), written)


def _export_program(path: Path) -> torch.export.ExportedProgram:
    logging.getLogger("torch.export").setLevel(logging.CRITICAL)  # torch also logs the traceback of its exceptions
    with path.open("rb") as file:  # torch refuses a path that does not end in .pt2
        return torch.export.load(file)


def forget_exported_programs() -> None:
    """Empty torch's caches, which keep data of each loaded program: source lines for tracebacks, and shape propagation."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx import graph_module

    FakeTensorMode.cache_clear()
    graph_module._loader.eval_cache.clear()
    for name in [name for name in linecache.cache if name.startswith("<eval_with_key>")]:
        del linecache.cache[name]


def _unflattened(module: torch.nn.Module, in_spec: "TreeSpec") -> Call:
    from torch.utils._pytree import tree_unflatten

    def call(*tensors: torch.Tensor) -> object:
        args, kwargs = tree_unflatten(tensors, in_spec)
        return module(*args, **kwargs)

    return call


# -- AOTInductor -------------------------------------------------------------------------------------------------------
def _load_aotinductor(path: Path, archive: Archive, device: torch.device) -> TorchModel:
    if archive.device and archive.device != device.type:
        raise unavailable(
            f"the AOTInductor package was compiled for {archive.device}, but the instance runs on {device.type}"
        )
    index = -1 if device.index is None else device.index
    compiled = torch._inductor.aoti_load_package(str(path), device_index=index)
    in_spec, _ = (json.loads(spec)[1] for spec in compiled.loader.get_call_spec())
    names = tuple(aoti_input_names(in_spec))

    def call(*tensors: torch.Tensor) -> object:
        return compiled.loader.run(list(tensors))

    return TorchModel(call, names, len(names))


def aoti_input_names(in_spec: Json) -> list[str]:
    """Return Triton's names for the leaves of a call specification: ARGS[0], ARGS[2][key], KWARGS[key]."""
    args, kwargs = in_spec["children_spec"]
    return [*_leaves("ARGS", args), *_leaves("KWARGS", kwargs)]


def _leaves(name: str, spec: Json) -> list[str]:
    if spec["type"] is None:
        return [name]
    children = spec["children_spec"]
    keys = json.loads(spec["context"]) if spec["type"] == "builtins.dict" else range(len(children))
    return [leaf for key, child in zip(keys, children, strict=True) for leaf in _leaves(f"{name}[{key}]", child)]


# -- errors ------------------------------------------------------------------------------------------------------------
def sentence(error: Exception) -> str:
    """Return the line of an error that has the message. TorchScript puts a traceback before this line, C++ after it."""
    text = str(error).strip() or type(error).__name__
    raised = _RAISED.findall(text)
    first = _PATH.sub("", raised[-1] if raised else text.splitlines()[0])
    return " ".join(first.split()).rstrip(". :")


def run_error(error: Exception, shapes_vary: bool) -> ServingError:
    """Return INVALID_ARG if the inputs are wrong (an index or a free dimension does not fit), else INTERNAL."""
    text = sentence(error)
    if isinstance(error, AssertionError) and text.startswith("Guard failed: "):
        return invalid(f"the model refuses the inputs: expected {text.removeprefix('Guard failed: ')}")
    if isinstance(error, IndexError) or "index out of range" in text or (shapes_vary and _INPUT_FAULT.search(text)):
        return invalid(f"the model refuses the inputs: {text}")
    return internal(f"the model failed: {text}")
