"""The requests of the connections, and the check of their answers."""

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from tritonclient.grpc import service_pb2 as pb

from benchmarks.soak import models
from dashboard.loads.requests import http_request

TITLES = {
    models.SCALE: "ONNX",
    models.PYTHON: "Python",
    models.ENSEMBLE: "ensemble",
    models.SEQUENCE: "sequence",
    models.DECOUPLED: "decoupled",
}
_sequences = itertools.count(random.SystemRandom().randrange(1, 1 << 40))


@dataclass(frozen=True, slots=True)
class Question:
    """A request. sequence: the id of its sequence, or 0. position: its place in the sequence, from 1. responses: the number of
    expected responses."""

    model: str
    value: float
    sequence: int = 0
    position: int = 0
    responses: int = 1

    @property
    def start(self) -> bool:
        return self.position == 1

    @property
    def end(self) -> bool:
        return self.position == models.SEQUENCE_LENGTH

    def wrong(self, answers: list[float], factors: set[float]) -> str:
        """Return the mistake in the answers; "" if they are right."""
        if self.model == models.DECOUPLED:
            good = answers == [float(index) for index in range(self.responses)]
        elif self.model == models.SEQUENCE:
            good = answers == [float(self.position)]
        else:
            good = len(answers) == 1 and models.right(self.model, self.value, answers[0], factors)
        return "" if good else f"a wrong answer: {answers} to {self}"


def mixed() -> Iterator[Question]:
    """Yield single requests to the models of WEIGHTS."""
    names, weights = list(models.WEIGHTS), list(models.WEIGHTS.values())
    while True:
        for name in random.choices(names, weights, k=100):
            yield Question(name, float(random.randrange(1, 10)))


def sequences() -> Iterator[Question]:
    """Yield the requests of one sequence after the other. A new generator begins a new sequence."""
    while True:
        identifier = next(_sequences)
        for position in range(1, models.SEQUENCE_LENGTH + 1):
            yield Question(models.SEQUENCE, 1.0, identifier, position)


def decoupled() -> Iterator[Question]:
    while True:
        yield Question(models.DECOUPLED, float(models.RESPONSES), responses=models.RESPONSES)


# -- as bytes --------------------------------------------------------------------------------------------------------
def as_http(question: Question) -> bytes:
    return _http(question) if question.sequence else _known_http(question)


def _http(question: Question) -> bytes:
    tensor = f'{{"name":"INPUT{_suffix(question)}","datatype":"FP32","shape":[1,1],"data":[{question.value}]}}'
    said = ""
    if question.sequence:
        start, end = str(question.start).lower(), str(question.end).lower()
        said = f'"parameters":{{"sequence_id":{question.sequence},"sequence_start":{start},"sequence_end":{end}}},'
    return http_request("POST", f"/v2/models/{question.model}/infer", f'{{{said}"inputs":[{tensor}]}}'.encode())


def as_grpc(question: Question) -> bytes:
    return _grpc(question) if question.sequence else _known_grpc(question)


def _grpc(question: Question) -> bytes:
    request = pb.ModelInferRequest(model_name=question.model)
    shape = [1] if question.model == models.DECOUPLED else [1, 1]
    tensor = request.inputs.add(name=f"INPUT{_suffix(question)}", datatype="FP32", shape=shape)
    tensor.contents.fp32_contents.append(question.value)
    if question.sequence:
        request.parameters["sequence_id"].int64_param = question.sequence
        request.parameters["sequence_start"].bool_param = question.start
        request.parameters["sequence_end"].bool_param = question.end
    return bytes(request.SerializeToString())


def _suffix(question: Question) -> str:
    return "" if question.model == models.SEQUENCE else "0"


_known_http = lru_cache(1000)(_http)
_known_grpc = lru_cache(1000)(_grpc)
