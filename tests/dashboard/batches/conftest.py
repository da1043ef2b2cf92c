"""A real inference server with models for batch jobs, and batch jobs made the way a client makes them."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from django.conf import settings

from dashboard.access.authorisation import Actor
from dashboard.batches.selectors import batch_get
from dashboard.batches.services import batch_create, batch_receive_chunk, batch_resume, batch_start
from dashboard.configuration.drift import model_adopt
from dashboard.jobs.runner import job_run
from dashboard.models import BatchJob, Model
from dashboard.shared.choices import DesiredState
from tests.dashboard.processes import FixedServer, fixed_server, server_client
from tests.support import model_factory


def onnx_pick(repository: Any, name: str = "pick") -> None:
    """Write a model: y = table[x], INT64 [1]; a number over 9 is refused by ONNX Runtime."""
    shape: list[Any] = ["batch", 1]
    content = model_factory.onnx_bytes(
        [model_factory.helper.make_node("Gather", ["table", "x"], ["y"])],
        [("x", "INT64", shape)],
        [("y", "INT64", shape)],
        {"table": np.arange(100, 110, dtype=np.int64)},
    )
    model_factory.write_onnx(repository, name, content)
    model_factory.write_config(
        repository / name,
        'backend: "onnxruntime"\nmax_batch_size: 8\n'
        'input [ { name: "x" data_type: TYPE_INT64 dims: [ 1 ] } ]\n'
        'output [ { name: "y" data_type: TYPE_INT64 dims: [ 1 ] } ]\n',
    )


@pytest.fixture
def inference(db: None, actor: Actor, unqueued: list[int]) -> Iterator[FixedServer]:
    """A server with the models `scale` (OUTPUT0 = 2 * INPUT0), `pick` and `words` (BYTES to BYTES), which are managed."""
    repository = settings.MODEL_REPOSITORY
    with fixed_server(repository) as server:
        model_factory.onnx_scale(repository, extra="dynamic_batching { priority_levels: 2 default_priority_level: 1 }")
        model_factory.onnx_identity(repository, "words", dims=[1], datatype="BYTES")
        onnx_pick(repository)
        server.start()
        row = server.row()
        for name in ("scale", "pick", "words"):
            model_adopt(name=name, actor=actor)
            Model.objects.filter(name=name).update(desired_state=DesiredState.LOADED)
            server_client(row).load(name)
        yield server


@pytest.fixture
def sent(actor: Actor) -> Callable[..., BatchJob]:
    """sent("scale", b"..."): a batch job of which every byte has arrived."""

    def send(model: str, content: bytes, name: str = "rows.csv", by: Actor = actor) -> BatchJob:
        batch = batch_create(actor=by, model_name=model, files=[{"path": name, "size": len(content)}])
        batch_receive_chunk(batch=batch, number=0, offset=0, chunk=content, actor=by)
        return batch_get(batch.pk, by)

    return send


@pytest.fixture
def run(actor: Actor) -> Callable[..., BatchJob]:
    """run(batch): start a batch job, or continue it, and return it when its job has ended."""

    def start(batch: BatchJob, by: Actor = actor, again: bool = False, **asked: Any) -> BatchJob:
        job = (batch_resume if again else batch_start)(batch=batch, actor=by, **asked)
        job_run(job_id=job.pk)
        return batch_get(batch.pk, by)

    return start


def result_of(batch: BatchJob, number: int = 0) -> bytes:
    """Return the result of a file of a batch job that has succeeded."""
    assert batch.state == "succeeded", batch.job.error if batch.job is not None else ""
    return (batch.folder / "results" / str(number)).read_bytes()


def csv_of(rows: int, column: str = "INPUT0") -> bytes:
    """A file of the columns id and `column`, whose values are the numbers of the rows."""
    return f"id,{column}\n".encode() + b"".join(b"row %d,%d\n" % (one, one) for one in range(rows))


def mapping_of(batch: BatchJob) -> Mapping[str, list[str]]:
    return {row["name"]: row["columns"] for row in batch.plan["inputs"]}
