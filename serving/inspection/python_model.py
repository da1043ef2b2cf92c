"""Reads the syntax tree of a Python backend's model.py, without running any of it."""

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tritonclient.grpc import model_config_pb2 as mc

from repository.core.python_source import syntax_tree

_MAX_SOURCE_BYTES = 8 << 20
_CLASS = "TritonPythonModel"
_DATA_TYPES = frozenset(mc.DataType.keys())


@dataclass(slots=True)
class PythonTensor:
    """A tensor that the source names. data_type: a name of Triton's DataType; "" if it is no literal in the source."""

    name: str
    data_type: str = ""
    dims: list[int] = field(default_factory=list)


@dataclass(slots=True)
class PythonModel:
    """Problems that prevent the source from being served, and the tensors that the source names in literals."""

    problems: list[str] = field(default_factory=list)
    inputs: list[PythonTensor] = field(default_factory=list)
    outputs: list[PythonTensor] = field(default_factory=list)
    max_batch_size: int = 0


def read_python_model(path: Path) -> PythonModel:
    """Return the problems and the tensors of a model.py, as far as literals show them."""
    model = PythonModel()
    if path.stat().st_size > _MAX_SOURCE_BYTES:
        model.problems.append(f"the source has more than {_MAX_SOURCE_BYTES >> 20} MiB")
        return model
    try:
        tree = syntax_tree(path.read_bytes())
    except SyntaxError as error:
        place = f"line {error.lineno}: {error.msg}" if error.lineno else "the source is no Python text"
        model.problems.append(place)
        return model
    except (ValueError, RecursionError, MemoryError):
        model.problems.append("the source is no Python text")
        return model
    found = next((node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == _CLASS), None)
    if found is None:
        model.problems.append(f"the source has no class {_CLASS}, which Triton's Python backend expects")
        return model
    _read_class(found, tree, model)
    return model


def _read_class(node: ast.ClassDef, tree: ast.Module, model: PythonModel) -> None:
    methods = {item.name for item in node.body if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef)}
    if "execute" not in methods and not node.bases:
        model.problems.append(f"class {_CLASS} has no method 'execute'")
    literals = _literals(tree)
    for call in (found for found in ast.walk(tree) if isinstance(found, ast.Call)):
        _read_call(call, literals, model)


def _literals(tree: ast.Module) -> dict[str, object]:
    """Return the literal that is assigned to each name: {"input0": {"name": "INPUT0", ...}}."""
    found: dict[str, object] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            value = _literal(node.value)
            if value is not None:
                found[node.targets[0].id] = value
    return found


def _literal(node: ast.expr) -> object:
    try:
        value: object = ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return None
    return value


def _read_call(call: ast.Call, literals: Mapping[str, object], model: PythonModel) -> None:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    values = [literals.get(arg.id) if isinstance(arg, ast.Name) else _literal(arg) for arg in call.args]
    match name, values:
        case "add_input", [dict() as tensor, *_]:
            _add(model.inputs, tensor)
        case "add_output", [dict() as tensor, *_]:
            _add(model.outputs, tensor)
        case "get_input_tensor_by_name", [_, str() as tensor_name]:
            _add(model.inputs, {"name": tensor_name})
        case "Tensor", [str() as tensor_name, *_]:
            _add(model.outputs, {"name": tensor_name})
        case "set_max_batch_size", [int() as size]:
            model.max_batch_size = max(0, size)


def _add(tensors: list[PythonTensor], literal: Mapping[object, object]) -> None:
    """Add a tensor, or merge it with a known tensor of the same name. Values of a wrong type are left out."""
    name, data_type, dims = literal.get("name"), literal.get("data_type"), literal.get("dims")
    if not isinstance(name, str):
        return
    tensor = next((known for known in tensors if known.name == name), None)
    if tensor is None:
        tensor = PythonTensor(name)
        tensors.append(tensor)
    if isinstance(data_type, str) and data_type in _DATA_TYPES:
        tensor.data_type = data_type
    if isinstance(dims, list | tuple) and dims and all(isinstance(dim, int) for dim in dims):
        tensor.dims = list(dims)
