"""One real server for the tests of the HTTP and metrics frontends."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.serving.frontends.raw_http import RawClient
from tests.support.model_factory import ONNX_TYPES, onnx_add_sub, onnx_identity, onnx_slow
from tests.support.serving_process import ServerProcess, remember_descendants

MAX_BODY = 8 << 20


@pytest.fixture(autouse=True)
def _descendants(request: pytest.FixtureRequest) -> None:
    """Note what runs before each test of a file that asks what a test has started: it reads the state of every process."""
    if hasattr(request.module, "new_descendants"):
        remember_descendants()


@pytest.fixture(scope="session")
def http_models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """identity_<datatype> for every datatype, add_sub, slow, and two identities without a batch dimension."""
    repository = tmp_path_factory.mktemp("http-models")
    for datatype in ONNX_TYPES:
        onnx_identity(repository, f"identity_{datatype.lower()}", datatype)
    onnx_add_sub(repository)
    onnx_slow(repository, extra="instance_group [ { count: 1 } ]")
    onnx_identity(repository, "plain", "FP32", max_batch_size=0)
    onnx_identity(repository, "fixed", "FP32", [4], max_batch_size=4)
    return repository


@pytest.fixture(scope="session")
def http_server(http_models: Path) -> Iterator[ServerProcess]:
    with ServerProcess(
        http_models, "--model-control-mode=explicit", "--load-model=*", f"--http-max-input-size={MAX_BODY}"
    ) as server:
        yield server


@pytest.fixture
def raw(http_server: ServerProcess) -> Iterator[RawClient]:
    with RawClient(http_server.http) as client:
        yield client
