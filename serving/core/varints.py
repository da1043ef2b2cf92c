"""Writes protobuf's varints and length-delimited fields.

Source: protobuf's encoding, Base 128 Varints and Length-Delimited Records.
"""


def varint(value: int) -> bytes:
    """Return a value of at least 0 as protobuf writes it."""
    if value < 0x80:
        return bytes((value,))
    result = bytearray()
    while value >= 0x80:
        result.append(value & 0x7F | 0x80)
        value >>= 7
    result.append(value)
    return bytes(result)


def length_delimited(number: int, payload: bytes) -> bytes:
    """Return a field of bytes, a string or a message."""
    return varint(number << 3 | 2) + varint(len(payload)) + payload
