"""The outermost protobuf layer of ModelInfer, read and written by hand so that tensors are not copied through upb.

Only tags, lengths and where the raw tensors lie; everything else is left to protobuf.
"""

from typing import NamedTuple

from serving.core.errors import ServingError, invalid

# field number << 3 | wire type 2 (length-delimited)
_REQUEST_ID = 3 << 3 | 2
_RAW_INPUT_CONTENTS = 7 << 3 | 2
_REQUEST_FIELDS = frozenset(number << 3 | 2 for number in range(1, 8))
_FIELDS = range(16_384)  # of one request: each costs a little time, and protobuf some memory
_RESPONSE_ID = bytes([3 << 3 | 2])
_RAW_OUTPUT_CONTENTS = bytes([6 << 3 | 2])


class RequestParts(NamedTuple):
    head: bytes  # the message without its id and raw tensors: the same bytes for each request of most clients
    id: bytes
    raw: "list[bytes | memoryview]"


def malformed() -> ServingError:
    return invalid("the message is not a ModelInferRequest in protobuf's encoding")


def split_request(body: "bytes | memoryview", start: int) -> RequestParts | None:
    """Where the parts of the ModelInferRequest lie that begins at `start`; None for an encoding that only protobuf reads
    (unknown fields). INVALID_ARG for too many fields. Of `bytes` the raw tensors are aligned copies, of a memoryview they
    are views."""
    end = len(body)
    raw: list[bytes | memoryview] = []
    pieces: list[bytes] = []
    identifier = b""
    known = True
    position = kept = start
    try:
        for _ in _FIELDS:
            if position >= end:
                break
            tag = body[position]
            if tag not in _REQUEST_FIELDS:
                known = False
                position = _behind_unknown(body, position)
                continue
            length = body[position + 1]
            at = position + 2
            if length >= 0x80:
                length, at = _read_varint(body, position + 1)
            stop = at + length
            if stop > end:
                raise malformed()
            if tag in (_RAW_INPUT_CONTENTS, _REQUEST_ID):
                if kept < position:
                    pieces.append(bytes(body[kept:position]))
                kept = stop
                if tag == _REQUEST_ID:
                    identifier = bytes(body[at:stop])
                else:
                    raw.append(body[at:stop])
            position = stop
    except IndexError:
        raise malformed() from None
    if position < end:
        raise invalid(f"expected at most {len(_FIELDS)} inputs, outputs, parameters and other fields in a request")
    if position > end:
        raise malformed()
    if not known:
        return None
    if kept < end:
        pieces.append(bytes(body[kept:end]))
    return RequestParts(pieces[0] if len(pieces) == 1 else b"".join(pieces), identifier, raw)


def _behind_unknown(body: "bytes | memoryview", position: int) -> int:
    """Where the next field begins behind one that is not known."""
    tag, position = _read_varint(body, position)
    kind = tag & 7
    if kind == 0:
        while body[position] & 0x80:
            position += 1
        return position + 1
    if kind == 2:
        length, position = _read_varint(body, position)
        return position + length
    if kind in (1, 5):
        return position + (8 if kind == 1 else 4)
    raise malformed()  # groups, which no proto3 message has


def _read_varint(body: "bytes | memoryview", position: int) -> tuple[int, int]:
    """The value at `position` and the position behind it; lengths over 2^35 are malformed."""
    value = shift = 0
    while True:
        byte = body[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
        if shift > 28:
            raise malformed()


def varint(value: int) -> bytes:
    if value < 0x80:
        return bytes((value,))
    result = bytearray()
    while value >= 0x80:
        result.append(value & 0x7F | 0x80)
        value >>= 7
    result.append(value)
    return bytes(result)


def response_id(identifier: str) -> bytes:
    """The id field of a ModelInferResponse."""
    value = identifier.encode()
    return _RESPONSE_ID + varint(len(value)) + value


def raw_output_prefix(size: int) -> bytes:
    """What stands before a tensor of `size` bytes in raw_output_contents."""
    return _RAW_OUTPUT_CONTENTS + varint(size)
