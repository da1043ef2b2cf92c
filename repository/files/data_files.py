"""Proves from their content that files of a model are data, in any place and for any reader.

Each extension has a proof, and a file is data if its content passes the proof of its extension. JSON must contain only tokens
of JSON, a text must be no program, and a picture or weights must begin with the header of their format. No file may end as a
zip archive, which is read from its end. A file without a proof, or too large for its proof, is not known to be data.

A proof reads the whole of a text, and the beginning and end of other files. One `DataFiles` reads at most `_READ_BYTES` in all.

Sources: RFC 8259; the safetensors format; PKWARE's APPNOTE 4.3.16 (a zip file is read from its end); Python's pickletools, for
pickles of protocol 0, which are text; PEP 263 (the encoding of a program); sentencepiece_model.proto.
"""

import ast
import codeop
import os
import pickletools
import re
import tarfile
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from repository.core.python_source import syntax_tree

_READ_BYTES = 256 << 20
_TEXT_BYTES = 64 << 20
_HEADER_BYTES = 16 << 20  # the largest header of safetensors
_HEAD_BYTES = 64 << 10  # the bytes that are read at the beginning of a file in another format
_PYTHON_BYTES = 64 << 10  # the bytes at the beginning of a text that are parsed as Python
_PICKLE_STEPS = 1000
_ZIP_END, _ZIP_END_BYTES = b"PK\x05\x06", 22 + 0xFFFF

_JSON_BEGINS = re.compile(rb"[ \t\r\n]*+[\[{]")
_JSON_TOKEN = (
    rb'[\[\]{}:, \t\r\n]++|"(?:[^"\\\x00-\x1f]++|\\["\\/bfnrtu])*+"|[0-9.eE+-]++|true|false|null|-?Infinity|NaN'
)
_ONE_TOKEN, _TOKENS = re.compile(_JSON_TOKEN), re.compile(rb"(?:" + _JSON_TOKEN + rb")*+")
_STEP_BYTES = 1 << 20  # the bytes of one match, during which no other thread runs
_CONTROL = re.compile(rb"[\x00-\x08\x0b\x0e-\x1f\x7f]")
# A program in another encoding than UTF-8 may write all of its characters as escapes.
_ENCODED = re.compile(
    rb"(?:[^\r\n]*+[\r\n]++)?[ \t\f]*+#[^\r\n]*?coding[:=][ \t]*+(?!utf-8|ascii|latin-1)[-\w.]", re.IGNORECASE
)
_DOING = re.compile(rb"[(=]|\b(?:import|for)\b")  # Python cannot call, assign or import without one of these
# The syntax nodes of a program that has no effect.
_IDLE = (
    *(ast.Module, ast.Expr, ast.Name, ast.Constant, ast.Tuple, ast.List, ast.Set, ast.Dict, ast.Attribute),
    *(ast.Assign, ast.AnnAssign, ast.UnaryOp, ast.BinOp, ast.BoolOp, ast.Compare),
    *(ast.expr_context, ast.unaryop, ast.operator, ast.boolop, ast.cmpop),
)
_STEPS = {ord(step.code): step for step in pickletools.opcodes}
_IMPORTING = ("GLOBAL", "INST", "STACK_GLOBAL", "EXT1", "EXT2", "EXT4")
_RUNNING = ("REDUCE", "INST", "OBJ", "BUILD", "NEWOBJ", "NEWOBJ_EX")
_LENGTHS = {  # the number of bytes in the length that precedes an argument
    pickletools.TAKEN_FROM_ARGUMENT1: 1,
    pickletools.TAKEN_FROM_ARGUMENT4: 4,
    pickletools.TAKEN_FROM_ARGUMENT4U: 4,
    pickletools.TAKEN_FROM_ARGUMENT8U: 8,
}


class DataFiles:
    """Decides which files of one version or upload are data. All its calls together read a limited number of bytes."""

    def __init__(self) -> None:
        self._left = _READ_BYTES

    def has(self, name: str, path: Path) -> bool:
        """Return whether a file is known to be data: its extension has a proof, and its content passes the proof."""
        proof = _proof_of(name)
        if proof is None:
            return False
        size = path.stat().st_size
        self._left -= size if proof in _WHOLE else min(size, _HEADER_BYTES + _ZIP_END_BYTES)
        if self._left < 0:
            return False
        with path.open("rb") as file:
            return proof(file, size)


def _proof_of(name: str) -> "Callable[[BinaryIO, int], bool] | None":
    last = PurePosixPath(name).name.lower()
    return next((proof for end, proof in _PROOFS.items() if last.endswith(end)), _NAMES.get(last))


# -- texts -------------------------------------------------------------------------------------------------------------
def _is_json(file: BinaryIO, size: int) -> bool:
    """Return whether a file begins an object or array and contains only tokens of JSON: no names, calls or operators.

    Such a file is no program. A file with one JSON value on each line passes, too.
    """
    content = _text_bytes(file, size)
    return content is not None and _holds_tokens(content)


def _holds_tokens(content: bytes) -> bool:
    begin = _JSON_BEGINS.match(content)
    at = begin.end() if begin else -1
    while 0 <= at < len(content):
        some = _TOKENS.match(content, at, at + _STEP_BYTES)
        if some is None or some.end() == at:
            some = _ONE_TOKEN.match(content, at)  # one token may be longer than a step
        at = some.end() if some else -1
    return at == len(content)


def _is_text(file: BinaryIO, size: int) -> bool:
    """Return whether a file is text for people or a tokenizer: no control characters, no script, no pickle, no Python."""
    content = _text_bytes(file, size)
    if content is None or content.startswith(b"#!") or _is_pickle(content):
        return False
    return not _is_python(content)


def _text_bytes(file: BinaryIO, size: int) -> bytes | None:
    """Return the content of a file that is UTF-8 without control characters, or None for any other file.

    Every binary format has control characters, except tar, which may have none. So the function returns None for tar, too.
    """
    if size > _TEXT_BYTES:
        return None
    content = file.read(_TEXT_BYTES)
    try:
        content.decode("utf-8")
    except UnicodeDecodeError:
        return None
    return None if _CONTROL.search(content) or _is_tar(content) else content


def _is_tar(content: bytes) -> bool:
    """Return whether a file begins with a header of tar. Only its checksum is compared, because it may have no other mark."""
    try:
        tarfile.TarInfo.frombuf(content[: tarfile.BLOCKSIZE], "utf-8", "surrogateescape")
    except tarfile.HeaderError:
        return False
    return True


def _is_python(content: bytes) -> bool:
    """Return whether a text may be a program: it parses as Python, and contains more than names and literal values.

    Only the beginning of a long text is parsed; if it is Python, the text counts as a program, because the rest may do more.
    A text that declares its encoding, or is nested too deeply to be parsed, counts as a program, too.
    """
    if _ENCODED.match(content):
        return True
    if not _DOING.search(content):
        return False
    whole = len(content) <= _PYTHON_BYTES
    try:
        with warnings.catch_warnings(action="ignore"):
            if not whole:
                head = content[: content.rfind(b"\n", 0, _PYTHON_BYTES) + 1] or content[:_PYTHON_BYTES]
                codeop.compile_command(head.decode(errors="ignore"), "<text>", "exec")  # raises if `head` is no Python
                return True
            tree = syntax_tree(content)
    except (MemoryError, RecursionError):
        return True
    except (SyntaxError, ValueError, OverflowError):
        return False
    return not all(map(_is_idle, ast.walk(tree)))


def _is_idle(node: ast.AST) -> bool:
    """Return whether a node has no effect.

    An assignment to an attribute counts as an effect, because it may replace the method that a later `+` or `[]` calls.
    """
    replaces = isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load)
    return isinstance(node, _IDLE) and not replaces


# -- pickles -----------------------------------------------------------------------------------------------------------
def _is_pickle(content: bytes, goes_on: bool = False) -> bool:
    """Return whether an unpickler, called until the end of the content, would import an object and call it.

    The function returns True for a pickle with too many steps. It follows the depth and the marks of the stack, without values.
    The words of a tokenizer could mostly be opcodes of a pickle, too, but soon one of them needs a stack item that no earlier
    opcode has left. Steps that an unpickler would refuse only for their values pass. goes_on: whether more content follows.
    """
    stack: list[bool] = []  # whether each item is a mark
    imports = at = 0
    for _ in range(_PICKLE_STEPS):
        if at >= len(content):
            return goes_on
        step = _STEPS.get(content[at])
        if step is None or not _apply_step(stack, step):
            return False
        imports += step.name in _IMPORTING
        if imports and step.name in _RUNNING:
            return True
        at = _behind(content, at + 1, step.arg)
        if step.name == "STOP":
            stack.clear()
    return True


def _apply_step(stack: list[bool], step: pickletools.OpcodeInfo) -> bool:
    """Take the items that a step needs from the stack, and push its results. Return False if items are missing."""
    needs = step.stack_before
    if pickletools.markobject in needs:
        if True not in stack:
            return False
        while not stack.pop():
            pass
        needs = needs[: needs.index(pickletools.markobject)]
    if len(needs) > len(stack) or (any(stack[len(stack) - len(needs) :]) and step.name != "POP"):
        return False
    del stack[len(stack) - len(needs) :]
    stack += [one is pickletools.markobject for one in step.stack_after]
    return True


def _behind(content: bytes, at: int, argument: pickletools.ArgumentDescriptor | None) -> int:
    """Return the offset of the end of a step's argument; beyond the content if the argument has no end."""
    if argument is None:
        return at
    if argument.n == pickletools.UP_TO_NEWLINE:
        for _ in range(2 if argument.name.endswith("_pair") else 1):
            at = content.find(b"\n", at) + 1 or len(content) + 1
        return at
    if argument.n >= 0:
        return at + argument.n
    length = _LENGTHS[argument.n]
    return at + length + int.from_bytes(content[at : at + length], "little")


# -- other formats -----------------------------------------------------------------------------------------------------
def _begins(*starts: bytes) -> Callable[[BinaryIO, int], bool]:
    """Return the proof for a format with fixed first bytes; in `starts`, `.` means any byte.

    Files of these formats have a zero byte near the beginning, and source code has none. Some may begin like a pickle.
    """
    patterns = [re.compile(start, re.DOTALL) for start in starts]

    def proof(file: BinaryIO, size: int) -> bool:
        head = file.read(_HEAD_BYTES)
        if not any(pattern.match(head) for pattern in patterns) or b"\0" not in head:
            return False
        return not _is_pickle(head, size > len(head)) and not _ends_as_zip(file, size)

    return proof


def _is_safetensors(file: BinaryIO, size: int) -> bool:
    """Return whether a file contains a length in eight bytes, a header in JSON of that length, and numbers."""
    length = int.from_bytes(file.read(8), "little")
    if not 2 <= length <= min(size - 8, _HEADER_BYTES):
        return False
    file.seek(0)
    head = file.read(8 + length + _HEAD_BYTES)
    header = head[8 : 8 + length]
    if not header.startswith(b"{") or not _holds_tokens(header) or _is_pickle(head, size > len(head)):
        return False
    return not _ends_as_zip(file, size)


def _is_sentencepiece(file: BinaryIO, size: int) -> bool:
    """Return whether a file is a vocabulary of SentencePiece: pieces (field 1), each with its length, then the settings."""
    if size > _TEXT_BYTES:
        return False
    content = file.read(_TEXT_BYTES)
    at = pieces = 0
    while at < len(content):
        field, at = content[at], at + 1
        length, at = _varint(content, at)
        pieces += 1
        if field not in _SENTENCEPIECE_FIELDS or at + length > len(content) or pieces > _MAX_PIECES:
            return False
        at += length
    return content.startswith(_FIRST_PIECE) and not _ends_as_zip(file, size)


_SENTENCEPIECE_FIELDS = tuple(number << 3 | 2 for number in range(1, 6))  # 2 is protobuf's wire type with a length
_FIRST_PIECE = bytes(_SENTENCEPIECE_FIELDS[:1])
_MAX_PIECES = 1 << 19  # twice as many as the largest vocabularies have


def _varint(content: bytes, at: int) -> tuple[int, int]:
    """Return a number of at most four bytes, and the place after it."""
    value = 0
    for shift in range(0, 28, 7):
        if at >= len(content):
            break
        byte = content[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    return _TEXT_BYTES, at  # a number larger than the length of any content


def _ends_as_zip(file: BinaryIO, size: int) -> bool:
    """Return whether a file ends with the end record of a zip archive. A zip archive may begin with any bytes."""
    file.seek(max(0, size - _ZIP_END_BYTES), os.SEEK_SET)
    return _ZIP_END in file.read(_ZIP_END_BYTES)


_WHOLE = (_is_json, _is_text, _is_sentencepiece)
# Extension -> the proof for the content.
_PROOFS: Mapping[str, Callable[[BinaryIO, int], bool]] = {
    ".json": _is_json,
    ".jsonl": _is_json,
    ".txt": _is_text,
    ".vocab": _is_text,
    ".bpe": _is_text,
    ".csv": _is_text,
    ".tsv": _is_text,
    ".md": _is_text,
    "spiece.model": _is_sentencepiece,
    "tokenizer.model": _is_sentencepiece,
    "sentencepiece.bpe.model": _is_sentencepiece,
    ".spm": _is_sentencepiece,
    ".safetensors": _is_safetensors,
    ".png": _begins(rb"\x89PNG\r\n\x1a\n"),
    ".jpg": _begins(rb"\xff\xd8\xff"),
    ".jpeg": _begins(rb"\xff\xd8\xff"),
    ".gif": _begins(rb"GIF8[79]a"),
    ".webp": _begins(rb"RIFF....WEBP"),
}
_NAMES: Mapping[str, Callable[[BinaryIO, int], bool]] = dict.fromkeys(("license", "notice", "readme"), _is_text)
