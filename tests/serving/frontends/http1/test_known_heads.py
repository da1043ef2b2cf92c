"""A head like one that was parsed before is read, with any values, as if it were the first."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.frontends.http1.known_heads import LIMIT
from serving.frontends.http1.message import Head, HttpError, parse_head
from serving.frontends.http1.routes import RouteTable

NAMES = [
    b"Host",
    b"Content-Length",
    b"Inference-Header-Content-Length",
    b"traceparent",
    b"X-Request-ID",
    b"Connection",
    b"Transfer-Encoding",
    b"Expect",
    b"Accept-Encoding",
    b"Content-Encoding",
    b"Upgrade",
]
VALUES = [
    *(
        b"",
        b"1",
        b"17",
        b"0017",
        b"5 ",
        b" 5",
        b"+5",
        b"-1",
        b"1_0",
        b"1, 2",
        b"9" * 15,
        b"9" * 16,
        b"9" * 19,
        b"9" * 25,
    ),
    *(b"keep-alive", b"close", b"chunked", b"gzip", b"100-continue", b"gzip;q=0", b"upgrade", b"h2c"),
    *(b"a", b"a b", b"a ", b"\ta", b"a\tb", b"a\x00b", b"a\x7fb", b"\xe9", b"a\rb", b"a\nb", b"a\r\nContent-Length: 3"),
]
lines = st.tuples(st.sampled_from(NAMES), st.sampled_from([b": ", b":", b" : "]), st.sampled_from(VALUES))
usual = st.tuples(st.sampled_from(NAMES[:5]), st.just(b": "), st.sampled_from([b"1", b"17", b"a", b"a b"]))


def described(head: Head) -> dict[str, Any]:
    return {name: getattr(head, name) for name in Head.__slots__} | {"order": list(head.headers)}


def parsed(data: bytes) -> dict[str, Any] | str:
    try:
        return described(parse_head(data))
    except HttpError as error:
        return f"{error.status} {error.message}"


def found(table: RouteTable, data: bytes) -> dict[str, Any] | str:
    try:
        return described(table.find(data)[0])
    except HttpError as error:
        return f"{error.status} {error.message}"


def join(headers: list[tuple[bytes, bytes, bytes]]) -> bytes:
    return b"POST /v2/models/m/infer HTTP/1.1\r\n" + b"".join(b"".join(line) + b"\r\n" for line in headers) + b"\r\n"


@settings(max_examples=500, deadline=None, database=None)
@given(st.lists(usual, min_size=1, max_size=5, unique_by=lambda line: line[0]), st.data())
def test_a_head_like_a_known_one_is_read_as_the_parser_reads_it(
    headers: list[tuple[bytes, bytes, bytes]], data: st.DataObject
) -> None:
    table = RouteTable((), None, 1 << 20)
    assert found(table, join(headers)) == parsed(join(headers))
    for _ in range(4):
        number = data.draw(st.integers(0, len(headers) - 1))
        name, colon, _ = headers[number]
        value = data.draw(st.sampled_from(VALUES))
        headers = headers.copy()
        headers[number] = data.draw(lines) if data.draw(st.integers(0, 4)) == 4 else (name, colon, value)
        assert found(table, join(headers)) == parsed(join(headers))


@pytest.mark.parametrize(
    "second",
    [
        (b"Content-Length", b": ", b"5\r\nContent-Length: 6"),
        (b"Content-Length", b": ", b"5\r\nTransfer-Encoding: chunked"),
        (b"Content-Length", b" : ", b"5"),
        (b"Content-Length", b": ", b"0x5"),
        (b"Transfer-Encoding", b": ", b"chunked"),
        (b" Content-Length", b": ", b"5"),
    ],
)
def test_a_head_that_would_smuggle_a_request_goes_to_the_parser(second: tuple[bytes, bytes, bytes]) -> None:
    table = RouteTable((), None, 1 << 20)
    first = (b"Host", b": ", b"x")
    for known in ((b"Content-Length", b": ", b"4"), (b"X-Request-ID", b": ", b"4")):
        table.find(join([first, known]))
        table.find(join([first, known, (b"a", b": ", b"b")]))
        assert found(table, join([first, second])) == parsed(join([first, second]))


def test_ids_that_are_new_each_time_are_no_new_heads_to_the_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    table = RouteTable((), None, 1 << 20)
    texts = [join([(b"Content-Length", b": ", b"%d" % n), (b"traceparent", b": ", b"00-%d" % n)]) for n in range(50)]
    table.find(texts[0])
    monkeypatch.setattr("serving.frontends.http1.routes.parse_head", None)
    for number, text in enumerate(texts):
        head, _ = table.find(text)
        assert (head.content_length, head.headers["traceparent"]) == (number, f"00-{number}")


def test_a_full_cache_forgets_one_head_and_not_all(monkeypatch: pytest.MonkeyPatch) -> None:
    table = RouteTable((), None, 1 << 20)
    texts = [f"GET /{number} HTTP/1.1\r\n\r\n".encode() for number in range(LIMIT + 1)]
    for text in texts:
        table.find(text)
    monkeypatch.setattr("serving.frontends.http1.routes.parse_head", None)
    for text in texts[1:]:
        table.find(text)
    with pytest.raises(TypeError):
        table.find(texts[0])
