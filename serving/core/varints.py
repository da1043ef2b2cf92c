"""Protobuf's varints, as they are written: seven bits in each byte, the lowest first, and a bit that says whether more follow.

Source: protobuf's encoding, Base 128 Varints.
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
