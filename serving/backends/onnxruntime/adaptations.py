"""Changes ONNX models in memory before ONNX Runtime loads them, without changing the file.

    ZipMap             returns probabilities as a sequence of maps, which no protocol carries. Its input, cast to FP32
                       [rows, classes], replaces it. skl2onnx, onnxmltools and CatBoost export ZipMap by default.
    a label            has one element for each row, although onnxmltools declares it as [1].
    a batch of 1       becomes any number of rows if slipway.variable_batch requests it.
    StringNormalizer   needs a locale, en_US if it names none. If this machine lacks that locale, C.UTF-8 replaces it,
                       which has the same upper and lower case.

Sources: the ONNX operator schemas of ZipMap, TreeEnsembleClassifier, LinearClassifier and SVMClassifier (ai.onnx.ml) and of
StringNormalizer (ai.onnx), and the field numbers of onnx.proto3.
"""

import ctypes
import functools
import mmap
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from serving.backends.onnxruntime.protobuf_walk import Source, fields, signed, text, varint
from serving.core.varints import length_delimited as _field
from serving.core.varints import varint as varint_bytes

_ML = "ai.onnx.ml"
_CLASSIFIERS = frozenset({"TreeEnsembleClassifier", "LinearClassifier", "SVMClassifier"})
_PASSING_ON = frozenset({"Identity", "Cast"})
_FLOAT = 1  # TensorProto.FLOAT
_OPSET_OF_CAST = 9  # the opset of ai.onnx for a model that imports none
_DEFAULT_LOCALE = "en_US"
_EVERYWHERE = "C.UTF-8"
_ROWS = b"slipway_rows"  # the name of a first dimension that is made variable
_LC_CTYPE_MASK = 1  # <locale.h> of glibc and musl


@dataclass(frozen=True, slots=True)
class Node:
    operator: str
    domain: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: tuple[tuple[int, int], ...]  # the start and end of each attribute in the file


@dataclass(slots=True)
class Adaptations:
    # Maps the output of a ZipMap to the names of its classes.
    class_names: dict[str, list[str]] = field(default_factory=dict)
    row_labels: set[str] = field(
        default_factory=set
    )  # outputs with one element for each row, although the file has another shape
    one_row: set[str] = field(default_factory=set)  # inputs and outputs whose first dimension of 1 becomes variable
    locale: str = ""  # replaces the locale of a StringNormalizer; "" for no change

    @property
    def in_memory(self) -> bool:
        """Return whether the model for ONNX Runtime differs from the file."""
        return bool(self.class_names or self.locale or self.one_row)


# -- reading -----------------------------------------------------------------------------------------------------------
def adaptations_of(source: Source, start: int, end: int, maps: Iterable[str], single: Iterable[str]) -> Adaptations:
    """Find the changes that the nodes of a graph need. maps: the graph's outputs that are no tensors. single: the outputs that
    the file declares with one row."""
    found = Adaptations()
    makers: dict[str, Node] = {}
    for number, _, first, last in fields(source, start, end):
        if number == 1:
            node = _node(source, first, last)
            makers |= dict.fromkeys(node.outputs, node)
            if _needs_other_locale(source, node):
                found.locale = _EVERYWHERE
    for name in maps:
        maker = makers.get(name)
        if maker is not None and _is_zip_map(maker):
            names = _class_names(source, maker)
            if names:
                found.class_names[name] = names
    found.row_labels = {name for name in single if _is_label(name, makers)}
    return found


def _is_zip_map(node: Node) -> bool:
    return (node.operator, node.domain) == ("ZipMap", _ML) and len(node.inputs) == len(node.outputs) == 1


def _is_label(name: str, makers: dict[str, Node]) -> bool:
    """Return whether an output is a classifier's first output (the classes of the rows), directly or after Cast nodes."""
    for _ in range(len(makers)):
        node = makers.get(name)
        if node is None:
            return False
        if node.domain == _ML and node.operator in _CLASSIFIERS:
            return node.outputs[0] == name
        if node.operator not in _PASSING_ON or len(node.inputs) != 1:
            return False
        name = node.inputs[0]
    return False


def _node(source: Source, start: int, end: int) -> Node:
    operator = domain = ""
    inputs, outputs, attributes = [], [], []
    for number, _, first, last in fields(source, start, end):
        if number == 1:
            inputs.append(text(source, first, last))
        elif number == 2:
            outputs.append(text(source, first, last))
        elif number == 4:
            operator = text(source, first, last)
        elif number == 5:
            attributes.append((first, last))
        elif number == 7:
            domain = text(source, first, last)
    return Node(operator, domain, tuple(inputs), tuple(outputs), tuple(attributes))


def _class_names(source: Source, node: Node) -> list[str]:
    """Return the class labels of a ZipMap, which are strings or integers."""
    numbers: list[str] = []
    words: list[str] = []
    for start, end in node.attributes:
        if _attribute_name(source, start, end) not in ("classlabels_int64s", "classlabels_strings"):
            continue
        for number, value, first, last in fields(source, start, end):
            if number == 8:
                numbers += map(str, _integers(source, value, first, last))
            elif number == 9:
                words.append(text(source, first, last))
    return words or numbers


def _integers(source: Source, value: int, start: int, end: int) -> list[int]:
    """Return a repeated int64, which protobuf writes either as single numbers or packed."""
    if start == end:
        return [signed(value)]
    found = []
    while start < end:
        value, start = varint(source.data, start, end)
        found.append(signed(value))
    return found


def _attribute_name(source: Source, start: int, end: int) -> str:
    return next((text(source, first, last) for number, _, first, last in fields(source, start, end) if number == 1), "")


def _needs_other_locale(source: Source, node: Node) -> bool:
    if node.operator != "StringNormalizer" or node.domain not in ("", "ai.onnx"):
        return False
    wanted = _DEFAULT_LOCALE
    for start, end in node.attributes:
        if _attribute_name(source, start, end) == "locale":
            values = (text(source, first, last) for number, _, first, last in fields(source, start, end) if number == 4)
            wanted = next(values, wanted)
    # ONNX Runtime asks for en_US.UTF-8 by default, or else for the exact name in the model.
    exact = "en_US.UTF-8" if wanted == _DEFAULT_LOCALE else wanted
    return not _has_locale(exact) and _has_locale(_EVERYWHERE)


@functools.cache
def _has_locale(name: str) -> bool:
    library = ctypes.CDLL(None)
    library.newlocale.restype = ctypes.c_void_p
    library.newlocale.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p]
    library.freelocale.argtypes = [ctypes.c_void_p]
    if "\0" in name:
        return False
    found = library.newlocale(_LC_CTYPE_MASK, name.encode(), None)
    if found:
        library.freelocale(found)
    return bool(found)


# -- writing -----------------------------------------------------------------------------------------------------------
Change = Callable[[int, int, int], bytes | None]
"""(field number, start, end of its bytes) -> the bytes that replace the field, or None to keep it."""


def adapt(path: Path, adaptations: Adaptations, has_default_opset: bool) -> bytes:
    """Return the changed model for ONNX Runtime.

    has_default_opset: whether the model imports operators of ai.onnx, such as Cast.
    """
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        source = Source(data)
        graph = _in_graph(source, adaptations)
        model = _changed(
            source, 0, len(data), lambda number, s, e: _field(7, _changed(source, s, e, graph)) if number == 7 else None
        )
    if not has_default_opset:
        model += _field(8, _field(1, b"") + b"\x10" + varint_bytes(_OPSET_OF_CAST))
    return model


def _in_graph(source: Source, adaptations: Adaptations) -> Change:
    names, one_row = adaptations.class_names, adaptations.one_row

    def change(number: int, start: int, end: int) -> bytes | None:
        if number == 1:
            node = _node(source, start, end)
            if _is_zip_map(node) and node.outputs[0] in names:
                return _field(1, _cast(node))
            if adaptations.locale and _needs_other_locale(source, node):
                return _field(1, _with_locale(source, start, end, adaptations.locale))
        elif number == 13 and one_row:  # drop shapes of intermediate values: they have the exported batch size
            return b""
        elif number in (11, 12, 13):  # the graph's inputs and outputs, and intermediate values
            name = _attribute_name(source, start, end)
            if name in one_row:
                return _field(number, _with_rows(source, start, end))
            if name in names:
                return _field(12, _probabilities(name, len(names[name]))) if number == 12 else b""
            if name in adaptations.row_labels:
                return _field(number, _without_shape(source, start, end))
        return None

    return change


def _changed(source: Source, start: int, end: int, change: Change) -> bytes:
    """Return a message with some fields replaced."""
    parts = []
    begin = start
    for number, _, first, last in fields(source, start, end):
        other = change(number, first, last)
        parts.append(source.data[begin:last] if other is None else other)
        begin = last
    return b"".join(parts)


def _cast(node: Node) -> bytes:
    """Return a Cast node to FP32 that replaces a ZipMap. Models made with FP64 have FP64 probabilities."""
    to = _field(1, b"to") + b"\x18" + varint_bytes(_FLOAT) + b"\xa0\x01\x02"  # i; AttributeProto.type = INT
    names = _field(1, node.inputs[0].encode()) + _field(2, node.outputs[0].encode())
    return names + _field(4, b"Cast") + _field(5, to)


def _probabilities(name: str, classes: int) -> bytes:
    """Return a ValueInfoProto: FP32 [any, classes]."""
    shape = _field(1, b"") + _field(1, b"\x08" + varint_bytes(classes))
    tensor = b"\x08" + varint_bytes(_FLOAT) + _field(2, shape)
    return _field(1, name.encode()) + _field(2, _field(1, tensor))


def _without_shape(source: Source, start: int, end: int) -> bytes:
    """Return the ValueInfoProto of a tensor without its shape."""

    def tensor(number: int, _start: int, _end: int) -> bytes | None:
        return b"" if number == 2 else None

    def kind(number: int, first: int, last: int) -> bytes | None:
        return _field(1, _changed(source, first, last, tensor)) if number == 1 else None

    return _changed(
        source, start, end, lambda number, s, e: _field(2, _changed(source, s, e, kind)) if number == 2 else None
    )


def _with_rows(source: Source, start: int, end: int) -> bytes:
    """Return the ValueInfoProto of a tensor, with a name instead of a size for its first dimension."""
    dimensions = 0

    def shape(number: int, _start: int, _end: int) -> bytes | None:
        nonlocal dimensions
        dimensions += number == 1
        return _field(1, _field(2, _ROWS)) if number == 1 and dimensions == 1 else None

    def tensor(number: int, first: int, last: int) -> bytes | None:
        return _field(2, _changed(source, first, last, shape)) if number == 2 else None

    def kind(number: int, first: int, last: int) -> bytes | None:
        return _field(1, _changed(source, first, last, tensor)) if number == 1 else None

    return _changed(
        source, start, end, lambda number, s, e: _field(2, _changed(source, s, e, kind)) if number == 2 else None
    )


def _with_locale(source: Source, start: int, end: int, name: str) -> bytes:
    def attribute(number: int, first: int, last: int) -> bytes | None:
        return b"" if number == 5 and _attribute_name(source, first, last) == "locale" else None

    kind = b"\xa0\x01\x03"  # AttributeProto.type = STRING
    return _changed(source, start, end, attribute) + _field(5, _field(1, b"locale") + _field(4, name.encode()) + kind)
