"""Decodes header blocks (HPACK, RFC 7541) with the dynamic table that the blocks of a connection share.

The tables of the Huffman code are those of the library hpack, whose decoder is not used, because it takes five times as long.
"""

from hpack.huffman_table import HUFFMAN_COMPLETE, HUFFMAN_EMIT_SYMBOL, HUFFMAN_FAIL, HUFFMAN_TABLE
from hpack.table import HeaderTable

MAX_HEADER_LIST_SIZE = 64 * 1024  # bytes, as RFC 9113 counts them: name + value + FIELD_OVERHEAD for each field
MAX_TABLE_SIZE = 4096  # bytes; the default of SETTINGS_HEADER_TABLE_SIZE, which this server does not change
FIELD_OVERHEAD = 32  # bytes
_MAX_INTEGER_BYTES = 4  # bytes of an integer after its prefix, so that no length exceeds 2^28

HeaderField = tuple[bytes, bytes]
HeaderList = list[HeaderField]

# Fields by their index (section 2.3.3): first the static table, from 1; then the dynamic table, newest first.
_STATIC: dict[int, HeaderField] = dict(enumerate(HeaderTable.STATIC_TABLE, 1))
_STATIC_COUNT = len(_STATIC)


class HeaderBlockError(Exception):
    """The block is malformed. Later blocks of the connection cannot be decoded either."""


class HeaderListTooLongError(Exception):
    """The fields have more than MAX_HEADER_LIST_SIZE bytes."""


class FieldDecoder:
    """Decodes the blocks of one connection in their order.

    changed: whether the last block has changed the dynamic table, and thus the meaning of later blocks.
    """

    __slots__ = ("_entries", "_max_size", "_size", "changed")

    def __init__(self) -> None:
        self._entries: HeaderList = []  # the dynamic table, oldest first
        self._size = 0
        self._max_size = MAX_TABLE_SIZE
        self.changed = False

    def decode(self, block: bytes) -> HeaderList:
        """Return the fields of a block in order. Raises HeaderBlockError or HeaderListTooLongError."""
        self.changed = False
        try:
            return self._decode(block)
        except LookupError:
            raise HeaderBlockError("the block ends too early, or refers to a field that does not exist") from None

    def _decode(self, block: bytes) -> HeaderList:
        fields: HeaderList = []
        entries = self._entries
        size = 0
        at = 0
        end = len(block)
        while at < end:
            first = block[at]
            at += 1
            if first >= 0x80:  # an indexed field (section 6.1)
                index = first - 0x80
                if index == 0x7F:
                    index, at = _integer(block, at, 0x7F)
                field = entries[_STATIC_COUNT - index] if index > _STATIC_COUNT else _STATIC[index]
            elif 0x20 <= first < 0x40:  # the table's size (section 6.3)
                if fields:
                    raise HeaderBlockError("the table's size changes inside of a block")
                at = self._resize(block, first, at)
                continue
            else:  # a literal field (section 6.2), which is added to the table if its first bits are 01
                prefix = 0x3F if first >= 0x40 else 0x0F
                index = first & prefix
                if index == prefix:
                    index, at = _integer(block, at, prefix)
                if index:
                    name = (entries[_STATIC_COUNT - index] if index > _STATIC_COUNT else _STATIC[index])[0]
                else:
                    name, at = _string(block, at)
                value, at = _string(block, at)
                field = name, value
                if first >= 0x40:
                    self._add(field)
            name, value = field
            size += len(name) + len(value) + FIELD_OVERHEAD
            if size > MAX_HEADER_LIST_SIZE:
                raise HeaderListTooLongError
            fields.append(field)
        return fields

    def _add(self, field: HeaderField) -> None:
        """Add a field to the table, and evict the oldest fields if it is full. A field that is too large empties the table
        (section 4.4)."""
        self.changed = True
        self._entries.append(field)
        self._size += len(field[0]) + len(field[1]) + FIELD_OVERHEAD
        if self._size > self._max_size:
            self._evict()

    def _resize(self, block: bytes, first: int, at: int) -> int:
        size = first & 0x1F
        if size == 0x1F:
            size, at = _integer(block, at, 0x1F)
        if size > MAX_TABLE_SIZE:
            raise HeaderBlockError("the table is larger than SETTINGS_HEADER_TABLE_SIZE")
        self.changed = True
        self._max_size = size
        self._evict()
        return at

    def _evict(self) -> None:
        count = 0
        for name, value in self._entries:
            if self._size <= self._max_size:
                break
            self._size -= len(name) + len(value) + FIELD_OVERHEAD
            count += 1
        del self._entries[:count]


def _integer(block: bytes, at: int, value: int) -> tuple[int, int]:
    """Return an integer (section 5.1), and where the next item begins. value: the integer's prefix, all of whose bits are 1."""
    for count in range(_MAX_INTEGER_BYTES):
        byte = block[at]
        at += 1
        value += (byte & 0x7F) << 7 * count
        if byte < 0x80:
            return value, at
    raise HeaderBlockError("an integer is too large")


def _string(block: bytes, at: int) -> tuple[bytes, int]:
    """Return the string (section 5.2) that begins at `at`, and where the next item begins."""
    first = block[at]
    at += 1
    length = first & 0x7F
    if length == 0x7F:
        length, at = _integer(block, at, 0x7F)
    stop = at + length
    if stop > len(block):
        raise HeaderBlockError("a string is longer than the block")
    text = block[at:stop]
    return (_huffman(text) if first & 0x80 else text), stop


# (state << 8 | byte) -> next state, the characters that the byte completes, and whether the text may end there. Filled on
# demand.
_STEPS: dict[int, tuple[int, bytes, bool]] = {}


def _huffman(text: bytes) -> bytes:
    """Decode a Huffman-coded text (section 5.2 and appendix B)."""
    state = 0
    complete = True
    pieces = []
    steps = _STEPS
    for byte in text:
        key = state << 8 | byte
        state, piece, complete = steps[key] if key in steps else _make_step(key)
        pieces.append(piece)
    if not complete:
        raise HeaderBlockError("a text ends in the middle of a character")
    return b"".join(pieces)


def _make_step(key: int) -> tuple[int, bytes, bool]:
    """Compute the step of a byte from the steps of its two halves, and cache it."""
    state, byte = key >> 8, key & 0xFF
    piece = b""
    flags = 0
    for half in (byte >> 4, byte & 0x0F):
        state, flags, symbol = HUFFMAN_TABLE[state * 16 + half]
        if flags & HUFFMAN_FAIL:
            raise HeaderBlockError("a text is not in Huffman's code")
        if flags & HUFFMAN_EMIT_SYMBOL:
            piece += bytes((symbol,))
    step = _STEPS[key] = state, piece, flags & HUFFMAN_COMPLETE != 0
    return step
