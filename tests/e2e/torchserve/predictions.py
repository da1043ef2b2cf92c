"""The requests to the inference API."""

import json
import re

from tests.e2e.torchserve.asking import Ask

PLAIN_ANSWERS = (
    "bytes bytearray str empty-str none int float bool list dict nan tensor saved header content-type all-status "
    "logs metric"
)
FAILURES = (
    "fails memory cuda prediction prediction-default not-a-list tuple too-many none-at-all no-answers unserialisable "
    "unknown-type"
)
STATUSES = ("200", "201 Made", "204", "299", "400", "404 Gone there", "418", "500 Own words", "599", "302 Elsewhere")
JSON = "application/json"
BOUNDARY = "a-line-between-parts"
MIXED = b"--c\r\nContent-Disposition: file; filename=a.txt\r\nContent-Type: text/plain\r\n\r\nA\r\n--c--\r\n"
MULTIPART = f"multipart/form-data; boundary={BOUNDARY}"


def part(name: str, content: bytes, file: str = "", content_type: str = "") -> bytes:
    """Return one part of a multipart body."""
    head = f'Content-Disposition: form-data; name="{name}"' + (f'; filename="{file}"' if file else "")
    head += f"\r\nContent-Type: {content_type}" if content_type else ""
    return f"--{BOUNDARY}\r\n{head}\r\n\r\n".encode() + content + b"\r\n"


def multipart(title: str, *parts: bytes) -> Ask:
    body = b"".join(parts) + f"--{BOUNDARY}--\r\n".encode()
    return Ask(title, "/predictions/acts", body, {"Content-Type": MULTIPART})


def shown(
    title: str, body: bytes = b"", content_type: str = "", target: str = "/predictions/acts", method: str = "POST"
) -> Ask:
    """Ask what the handler is given."""
    return Ask(title, target, body, {"Content-Type": content_type} if content_type else {}, method)


def act(name: str, body: bytes = b"x", target: str = "/predictions/acts", **headers: str) -> Ask:
    title = f"{name} {body.decode('latin-1')}".removesuffix(" x") + target.removeprefix("/predictions/acts")
    return Ask(title, target, body, {"act": name, **headers}, same=without_ports)


def rows(title: str, value: object, target: str = "/predictions/rows", **headers: str) -> Ask:
    return Ask(title, target, json.dumps(value).encode(), {"Content-Type": JSON, **headers})


def without_ports(text: str) -> str:
    return re.sub(r"127\.0\.0\.1:\d+", "ADDRESS", text)


def outline(text: str) -> str:
    """Return what an OpenAPI description says is there: paths, methods, parameters and statuses, without its sentences."""
    found = {
        f"{method} {path}": [[one["name"] for one in what.get("parameters", [])], sorted(what.get("responses", {}))]
        for path, methods in json.loads(text)["paths"].items()
        for method, what in methods.items()
    }
    return json.dumps(found, indent=1)


TWO = {"rows": [[1, 2, 3], [0, 0, 0]]}

ANSWERS = [act(name) for name in PLAIN_ANSWERS.split()] + [act("status", status.encode()) for status in STATUSES]
ERRORS = [act(name) for name in FAILURES.split()] + [
    rows("a failure in preprocess", {"fail": "preprocess"}),
    rows("a failure in inference", {"fail": "inference"}),
    rows("a failure in postprocess", {"fail": "postprocess"}),
    rows("rows that the model cannot take", {"rows": [[1, 2]]}),
    rows("a body that the handler cannot read", "no rows"),
]
INPUTS = [
    shown("a raw body without a type", b"\x00raw"),
    shown("octets", b"\x00raw", "application/octet-stream"),
    shown("JSON", b'{"a": [1, 2.50, null, "\xc3\xbc"]}', JSON),
    shown("JSON with a charset", b'{"a": 1}', "application/json; charset=utf-8"),
    shown("a JSON media type in capitals", b'{"a": 1}', "Application/JSON"),
    shown("a JSON string", b'"text"', JSON),
    shown("a JSON number", b"17", JSON),
    shown("JSON that is broken", b'{"a": ', JSON),
    shown("JSON that is no UTF-8", b'{"a": "\xff"}', JSON),
    shown("JSON that is empty", b"", JSON),
    shown("lines of JSON", b'{"a": 1}\n{"b": 2}\n', "application/jsonlines"),
    shown("JSON and another type", b'{"a": 1}', "application/json, text/plain"),
    shown("JSON after a byte order mark", b'\xef\xbb\xbf{"a": 1}', JSON),
    shown("an integer beyond 64 bits", b'{"a": 123456789012345678901234567890}', JSON),
    shown("a type that ends in json", b'{"a": 1}', "application/vnd.api+json"),
    shown("text", b"plain gr\xc3\xbcn", "text/plain"),
    shown("text in Latin-1", b"plain gr\xfcn", "text/plain; charset=iso-8859-1"),
    shown("text that is no UTF-8", b"\xff\xfe", "text/plain"),
    shown("text of CSV", b"1,2\n", "text/csv"),
    shown("an image", b"\x89PNG", "image/png"),
    shown("an unknown type", b"abc", "made/up"),
    shown("no body", b""),
    shown("GET", method="GET"),
    shown("GET with a query", method="GET", target="/predictions/acts?data=1"),
    shown("POST with a query", b"raw", target="/predictions/acts?data=1"),
    shown("PUT", b"raw", method="PUT"),
    shown("PATCH", b"raw", method="PATCH"),
    shown("DELETE", method="DELETE"),
    shown("a form", b"a=1&b=two+words&c=%C3%BC&a=2", "application/x-www-form-urlencoded"),
    shown("an empty form", b"", "application/x-www-form-urlencoded"),
    multipart("a field", part("data", b"one")),
    multipart("a field with a type", part("data", b'{"a": 1}', content_type=JSON)),
    multipart("several fields", part("data", b"one"), part("more", b"two \xff")),
    multipart("a repeated field", part("data", b"one"), part("data", b"two")),
    multipart("a file", part("data", b"\x89PNG", "cat.png", "image/png")),
    multipart("a file without a type", part("data", b"text", "cat.txt")),
    multipart("a file of JSON", part("data", b'{"a": 1}', "a.json", JSON)),
    multipart("a file of broken JSON", part("data", b'{"a": ', "a.json", JSON)),
    multipart("a file of text", part("data", b"gr\xc3\xbcn", "a.txt", "text/plain")),
    multipart("fields and files", part("text", b"words"), part("image", b"\x89", "cat.png", "image/png")),
    multipart("a multipart body without parts"),
    multipart("a multipart body inside a part", part("files", MIXED, content_type="multipart/mixed; boundary=c")),
    shown("a truncated multipart body", part("data", b"one")[:-9], MULTIPART, "/predictions/service"),
    shown("the older route", b"raw", target="/acts/predict"),
    shown("the older route with a query", b"raw", target="/acts/predict?data=1&more=%C3%BC"),
    shown("the older route by GET", target="/acts/predict?data=1&data=2", method="GET"),
    shown("the older route with a version", b"raw", target="/acts/1.0/predict?data=1"),
    shown("invoke", b"raw", target="/models/acts/invoke?data=1"),
    shown("invocations without a name", b"raw", target="/invocations"),
    shown("invocations with a name", b"raw", target="/invocations?model_name=acts&data=1"),
    act("headers", b"X-y,x-y,explain,url_path,content-type,Content-Type", **{"X-y": "Z", "Content-Type": "made/up"}),
    act("headers", b"url_path", "/predictions/acts/1.0/a/b?c=1"),
    act("headers", b"url_path", "/predictions/acts/1.0/"),
    act("about"),
]
MODELS = [
    rows("a scripted model", TWO),
    rows("a scripted model, told no type", TWO, **{"Content-Type": "application/octet-stream"}),
    rows("an eager model", TWO, "/predictions/eager"),
    rows("an ONNX model", {"rows": [[1, 2, 3]]}, "/predictions/onnx"),
    Ask("a service class", "/predictions/service", b"x"),
    rows("an explanation", TWO | {"target": 1}, "/explanations/rows"),
    rows("an explanation of a version", TWO, "/explanations/rows/1.0"),
    rows("an explanation of nobody", TWO, "/explanations/nobody"),
    Ask("an explanation of a plain handler", "/explanations/acts", b"explain", {"act": "headers"}),
    Ask("a version by name", "/predictions/service/1.0", b"x"),
    Ask("a streamed answer", "/predictions/stream", b"x"),
]
ROUTES = [
    Ask("ping", "/ping", method="GET"),
    Ask("ping by POST", "/ping"),
    Ask("the head of ping", "/ping", method="HEAD"),
    Ask("the head of a prediction", "/predictions/acts", headers={"act": "str"}, method="HEAD"),
    Ask("ping with a slash", "/ping/", method="GET"),
    Ask("an absolute URL as the path", "http://127.0.0.1/ping", method="GET"),
    Ask("an unknown method", "/ping", method="THINK"),
    Ask("an unknown Expect header", "/ping", headers={"Expect": "miracles"}, method="GET"),
    Ask("more than a hundred headers", "/ping", headers={f"X-{number}": "x" for number in range(120)}, method="GET"),
    Ask("the root", "/", method="GET"),
    Ask("no route", "/nothing", method="GET"),
    Ask("a longer path that is no route", "/nothing/at/all", method="GET"),
    Ask("no model", "/predictions", b"x"),
    Ask("no model after the slash", "/predictions/", b"x"),
    Ask("an unknown model", "/predictions/nobody", b"x"),
    Ask("an unknown version", "/predictions/acts/7.0", b"x"),
    Ask("an integer for a version", "/predictions/acts/1", b"x"),
    Ask("an unknown model by the older route", "/nobody/predict", b"x"),
    Ask("a name with an escape", "/predictions/a%63ts", b"x"),
    Ask("the management API here", "/models", method="GET"),
    Ask("registering here", "/models?url=acts.mar"),
    Ask("KServe's list", "/v1/models", method="GET"),
    Ask("KServe's model", "/v1/models/acts", method="GET"),
    Ask("KServe's unknown model", "/v1/models/nobody", method="GET"),
    Ask("KServe's predict", "/v1/models/acts:predict", b'{"instances": [{"data": 1}]}', {"Content-Type": JSON}),
    Ask("KServe's explain", "/v1/models/acts:explain", b'{"instances": [1]}', {"Content-Type": JSON}),
    Ask(
        "KServe's predict of an unknown model",
        "/v1/models/nobody:predict",
        b'{"instances": []}',
        {"Content-Type": JSON},
    ),
    Ask("KServe's wrong verb", "/v1/models/acts:think", b"{}", {"Content-Type": JSON}),
    Ask("V2 of a model", "/v2/models/acts", method="GET"),
    Ask("V2 readiness of a model", "/v2/models/acts/ready", method="GET"),
    Ask("V2's server", "/v2", method="GET"),
    Ask("V2 liveness", "/v2/health/live", method="GET"),
    Ask("V2 readiness", "/v2/health/ready", method="GET"),
    Ask("a body that is too large", "/predictions/acts", b"x" * 200_001, {"act": "show"}),
    Ask("another site's page", "/predictions/acts", b"x", {"Origin": "https://example.org"}),
    Ask(
        "another site's preflight",
        "/predictions/acts",
        headers={"Origin": "https://example.org", "Access-Control-Request-Method": "POST"},
        method="OPTIONS",
        same=outline,
    ),
    Ask("the description of the inference API", "/", method="OPTIONS", same=outline),
    Ask("the description of the inference API by name", "/api-description", method="GET", same=outline),
    Ask("the description of an unknown model", "/predictions/nobody", method="OPTIONS"),
    Ask("metrics here", "/metrics", method="GET"),
]
ASKS = [*ANSWERS, *ERRORS, *INPUTS, *MODELS, *ROUTES]
