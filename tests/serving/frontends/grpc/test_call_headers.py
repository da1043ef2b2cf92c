"""The heads of a connection are parsed as if each were the first."""

from hypothesis import given
from hypothesis import strategies as st

from serving.frontends.grpc.call_headers import HeadParser, parse_head
from serving.frontends.http2.header_decompression import HeaderList

BEGINNING = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/inference.GRPCInferenceService/ModelInfer")]
USUAL = [*BEGINNING, (b"te", b"trailers"), (b"content-type", b"application/grpc")]

VALUES = {
    b"grpc-timeout": [b"5000m", b"4999m", b"1S", b"soon", b""],
    b"traceparent": [b"00-1-1-01", b"00-2-2-01", b"\xff"],
    b"content-type": [b"application/grpc", b"application/grpc+proto", b"text/plain"],
    b"te": [b"trailers", b"gzip"],
    b"grpc-encoding": [b"identity", b"gzip", b"snappy"],
    b":path": [b"/a", b"/b", b""],
    b":method": [b"POST", b"GET"],
    b"connection": [b"close"],
    b"Upper": [b"1"],
    b"x": [b"1", b"2"],
}
FIELDS = st.sampled_from([(name, value) for name, values in VALUES.items() for value in values])
# What is added to the usual fields, or stands in their places: the names of few lists differ, as with real clients.
HEADS = st.lists(
    st.tuples(st.lists(FIELDS, max_size=3), st.one_of(st.none(), st.tuples(st.integers(0, 4), FIELDS))), max_size=6
)


@given(HEADS)
def test_earlier_heads_change_nothing(
    heads: list[tuple[HeaderList, tuple[int, tuple[bytes, bytes]] | None]],
) -> None:
    parser = HeadParser()
    for added, replaced in heads:
        fields = [*USUAL, *added]
        if replaced is not None:
            fields[replaced[0]] = replaced[1]
        assert parser.parse(fields) == parse_head(fields)


def test_a_head_stays_the_same_when_the_next_one_differs() -> None:
    parser = HeadParser()
    first, second = (parser.parse([*USUAL, (b"grpc-timeout", value)]) for value in (b"1S", b"2S"))
    assert (first.timeout_s, first.headers["grpc-timeout"]) == (1.0, "1S")
    assert (second.timeout_s, second.headers["grpc-timeout"]) == (2.0, "2S")
