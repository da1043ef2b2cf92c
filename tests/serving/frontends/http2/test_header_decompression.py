"""Header blocks, whole or broken, and the blocks after them are decoded as the library hpack decodes them."""

import hpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.frontends.http2.header_decompression import (
    MAX_HEADER_LIST_SIZE,
    FieldDecoder,
    HeaderBlockError,
    HeaderList,
    HeaderListTooLongError,
)

Decoded = HeaderList | str

NAMES = st.sampled_from([b":path", b":method", b"te", b"grpc-timeout", b"traceparent", b"", b"n" * 3000])
VALUES = st.one_of(st.binary(max_size=40), st.sampled_from([b"5000m", b"POST", b"v" * 1500]))
FIELDS = st.lists(st.tuples(NAMES, VALUES), max_size=8)
TABLE_SIZES = st.one_of(st.none(), st.sampled_from([0, 64, 1000, 4096]))
BLOCKS = st.lists(st.tuples(FIELDS, st.booleans(), TABLE_SIZES), min_size=1, max_size=5)
DAMAGE = st.one_of(
    st.none(),
    st.tuples(st.integers(0, 1 << 16), st.sampled_from(["change", "cut", "insert"]), st.binary(min_size=1, max_size=1)),
)


def decoded_by_hpack(decoder: hpack.Decoder, block: bytes) -> Decoded:
    try:
        return [(name, value) for name, value in decoder.decode(block, raw=True)]
    except hpack.OversizedHeaderListError:
        return "too long"
    except (hpack.HPACKError, ValueError, IndexError):
        return "broken"


def decoded(decoder: FieldDecoder, block: bytes) -> Decoded:
    try:
        return decoder.decode(block)
    except HeaderListTooLongError:
        return "too long"
    except HeaderBlockError:
        return "broken"


def damaged(block: bytes, damage: tuple[int, str, bytes] | None) -> bytes:
    if damage is None or not block:
        return block
    at, kind, byte = damage[0] % len(block), damage[1], damage[2]
    return block[:at] + {"change": byte + block[at + 1 :], "cut": b"", "insert": byte + block[at:]}[kind]


@given(BLOCKS, DAMAGE)
def test_blocks_of_one_connection_mean_the_same_to_both(
    blocks: list[tuple[HeaderList, bool, int | None]], damage: tuple[int, str, bytes] | None
) -> None:
    encoder, theirs, ours = hpack.Encoder(), hpack.Decoder(max_header_list_size=MAX_HEADER_LIST_SIZE), FieldDecoder()
    for number, (fields, huffman, table_size) in enumerate(blocks):
        if table_size is not None:
            encoder.header_table_size = table_size
        block = damaged(encoder.encode(fields, huffman=huffman), damage if number == len(blocks) - 1 else None)
        expected = decoded_by_hpack(theirs, block)
        assert decoded(ours, block) == expected
        if isinstance(expected, str):
            return


@given(st.binary(max_size=60))
def test_any_bytes_mean_the_same_to_both(block: bytes) -> None:
    theirs = hpack.Decoder(max_header_list_size=MAX_HEADER_LIST_SIZE)
    assert decoded(FieldDecoder(), block) == decoded_by_hpack(theirs, block)


@pytest.mark.parametrize("block", [b"\x7f\xff\xff\xff\xff\xff\xff\x01", b"\xff" * 6, b"\x00\x7f\xff\xff\xff\xff\x7f"])
def test_an_integer_without_end_is_refused(block: bytes) -> None:
    with pytest.raises(HeaderBlockError):
        FieldDecoder().decode(block)


def test_references_to_a_large_field_are_counted_each() -> None:
    decoder = FieldDecoder()
    decoder.decode(b"\x40\x01a\x7f\xa1\x1e" + b"v" * 4000)
    with pytest.raises(HeaderListTooLongError):
        decoder.decode(b"\xbe" * 17)


def test_a_block_that_only_refers_to_fields_changes_nothing() -> None:
    decoder = FieldDecoder()
    decoder.decode(b"\x40\x01a\x01b")
    assert decoder.changed
    assert decoder.decode(b"\xbe\x83") == [(b"a", b"b"), (b":method", b"POST")]
    assert not decoder.changed
