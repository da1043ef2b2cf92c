"""The requests to which Slipway and TorchServe 0.12 answer differently, with reasons; `docs/torchserve.md` has this table."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Difference:
    """status: the status of Slipway's answer. ours: a text in its body."""

    why: str
    ours: str
    status: int = 200


KSERVE = "KServe's clients need this route; TorchServe has it only through an envelope or not at all"

DIFFERENCES: dict[str, Difference] = {
    "a JSON media type in capitals": Difference("media types are case-insensitive", "dict"),
    "JSON after a byte order mark": Difference("JSON in UTF-8 may begin with one", "dict"),
    "an integer beyond 64 bits": Difference(
        "checking each number would slow down every body", "1.2345678901234568e+29"
    ),
    "a multipart body inside a part": Difference("RFC 7578 has no nested parts; the body stays one part", "--c"),
    "an absolute URL as the path": Difference("HTTP/1.1 requires servers to accept one", "Healthy"),
    "an unknown method": Difference("no API has this method", "not valid", 400),
    "an unknown Expect header": Difference("HTTP allows a server to ignore it", "Healthy"),
    "more than a hundred headers": Difference(
        "no client sends so many, and the server keeps each header for the handler", "100", 431
    ),
    "a truncated multipart body": Difference("a truncated body is the client's mistake", "multipart", 400),
    "a body that is too large": Difference("TorchServe gives no reason", "200000", 413),
    "another site's preflight": Difference("TorchServe names a path that does not exist", "post /predictions/acts"),
    "KServe's list": Difference(KSERVE, "models"),
    "KServe's model": Difference(KSERVE, "acts"),
    "KServe's unknown model": Difference(KSERVE, "ModelNotFoundException", 404),
    "V2 of a model": Difference(KSERVE, "BYTES"),
    "V2 readiness of a model": Difference(KSERVE, ""),
    "V2's server": Difference(KSERVE, "slipway"),
    "V2 liveness": Difference(KSERVE, "true"),
    "V2 readiness": Difference(KSERVE, "true"),
    "gRPC: the list": Difference("without a limit TorchServe lists nothing", "acts.mar"),
    "gRPC: registering twice": Difference("TorchServe gives no reason", "already registered"),
    "registering a file that is no archive": Difference(
        "TorchServe does not report that it is no archive", "no model archive", 400
    ),
    "registering with broken JSON": Difference("a client's mistake is not an error of the server", "not JSON", 400),
    "OPTIONS on the list of models": Difference(
        "this is a preflight of another site, which is answered on every path", "", 204
    ),
    "describing an archive with a delay of 0": Difference(
        "the archive sets a delay of 0; TorchServe uses 100", '"maxBatchDelay": 0'
    ),
    "scaling a model with invalid YAML": Difference(
        "invalid settings are ignored; TorchServe loses the worker", "scaled to 1"
    ),
    "a prediction of a plain coroutine": Difference(
        "a coroutine function needs no setting; TorchServe requires asyncCommunication", "later"
    ),
    "registering with a startup timeout of 0": Difference(
        "0 means the default; with TorchServe the worker can never start", "registered"
    ),
    "scaling to a negative number": Difference("TorchServe fails internally and loses the worker", "min_worker", 400),
}
