"""Where Slipway does not answer as TorchServe 0.12 does, and why: `docs/torchserve.md` says the same to people."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Difference:
    """`status` and `ours`: Slipway's answer, and what stands in its body."""

    why: str
    ours: str
    status: int = 200


KSERVE = "KServe's clients ask for it, and TorchServe answers them through an envelope or not at all"

DIFFERENCES: dict[str, Difference] = {
    "JSON in capitals": Difference("the names of media types have no case", "dict"),
    "JSON behind a byte order mark": Difference("JSON in UTF-8 may have one, and is decoded with it", "dict"),
    "a whole number beyond 64 bits": Difference(
        "a look at each number would slow every body down", "1.2345678901234568e+29"
    ),
    "a body of parts as a part": Difference("RFC 7578 has no parts in parts; it stays one, whole", "--c"),
    "a whole address for a path": Difference("HTTP/1.1 has servers take one", "Healthy"),
    "a method that nobody knows": Difference("it is no HTTP request of any API", "not valid", 400),
    "an expectation that nobody knows": Difference("it is passed over, as HTTP lets a server", "Healthy"),
    "more than a hundred headers": Difference("no client sends so many, and each is kept for the handler", "100", 431),
    "a multipart body cut off": Difference("a body that ends too soon is the client's mistake", "multipart", 400),
    "a body that is too large": Difference("theirs says nothing", "200000", 413),
    "another site's preflight": Difference("theirs names a path that does not exist", "post /predictions/acts"),
    "KServe's list": Difference(KSERVE, "models"),
    "KServe's model": Difference(KSERVE, "acts"),
    "KServe's unknown model": Difference(KSERVE, "ModelNotFoundException", 404),
    "V2 of a model": Difference(KSERVE, "BYTES"),
    "V2 readiness of a model": Difference(KSERVE, ""),
    "V2's server": Difference(KSERVE, "slipway"),
    "V2 liveness": Difference(KSERVE, "true"),
    "V2 readiness": Difference(KSERVE, "true"),
    "gRPC: the list": Difference("without a limit theirs lists nothing", "acts.mar"),
    "gRPC: registering twice": Difference("theirs says nothing", "already registered"),
    "registering what is no archive": Difference("theirs does not say that it is no archive", "no model archive", 400),
    "registering with broken JSON": Difference("the client's mistake is no failure of the server", "not JSON", 400),
    "the methods of a list": Difference("it is another site's preflight, which is answered on every path", "", 204),
    "described with a delay of none": Difference(
        "an archive that wants no delay has none; theirs has 100", '"maxBatchDelay": 0'
    ),
    "scaling bad YAML": Difference(
        "settings that cannot be read count as not said; theirs loses the worker", "scaled to 1"
    ),
    "a prediction of a plain coroutine": Difference("it says what it is; theirs wants asyncCommunication", "later"),
    "registering with no time to start": Difference("0 stands for the default; theirs can never start", "registered"),
    "scaling to fewer than none": Difference("theirs fails inside and loses the worker", "min_worker", 400),
}
