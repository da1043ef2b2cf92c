"""Models that the tools of others wrote go the way of any upload and answer with the numbers of their tools, or are refused.

Nobody edits a configuration: what the inspection proposes is published. docs/formats.md is the table of these models.
"""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpc

from dashboard.access.authorisation import Actor
from dashboard.conversions.recipes.table import may_be_converted
from dashboard.models import Upload
from dashboard.shared.exceptions import Invalid
from dashboard.uploads.publication import upload_publish
from repository.files.foreign_formats import by_names
from tests.dashboard.conftest import version_from
from tests.support.exported_models import Exported, exported_models
from tests.support.serving_process import ServerProcess

pytestmark = pytest.mark.django_db
EXPORTED = exported_models()
PAGE = Path(__file__).resolve().parents[3] / "docs" / "formats.md"


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("exported")


@pytest.fixture(scope="module")
def client(repository: Path) -> Iterator[grpc.InferenceServerClient]:
    with ServerProcess(repository, "--model-control-mode=explicit") as server:
        client = grpc.InferenceServerClient(server.grpc)
        yield client
        client.close()


@pytest.fixture(autouse=True)
def published_there(data_folder: Path, settings: Any, repository: Path) -> None:
    settings.MODEL_REPOSITORY = repository


def said(upload: Upload) -> str:
    problems = upload.proposal.get("problems", [])
    return " ".join(f"{problem['message']} {problem.get('code', '')}" for problem in problems) or upload.error


@pytest.mark.parametrize("model", [one for one in EXPORTED if not one.refused], ids=lambda model: model.name)
def test_a_model_answers_with_the_numbers_of_the_tool_that_made_it(
    model: Exported, inspected: Callable[..., Upload], actor: Actor, client: grpc.InferenceServerClient
) -> None:
    upload = inspected({name: path.read_bytes() for name, path in model.files.items()}, model_name=model.name)
    assert upload.state == "inspected", upload.error
    assert model.said in said(upload)
    version = version_from(upload_publish(upload=upload, actor=actor, load=False))
    assert version.details.get("class_names", {}) == model.classes
    client.load_model(model.name)
    assert model.differences(client) == []


@pytest.mark.parametrize("model", [one for one in EXPORTED if one.refused], ids=lambda model: model.name)
def test_what_is_no_model_is_refused_with_the_remedy(model: Exported, inspected: Callable[..., Upload]) -> None:
    files = {name: path.read_bytes() for name, path in model.files.items()}
    if by_names(files) and not may_be_converted(list(files)):
        with pytest.raises(Invalid, match=re.escape(model.refused)):  # before a byte was sent
            inspected(files, model_name=model.name)
    else:
        upload = inspected(files, model_name=model.name)
        assert upload.state == "failed"
        assert model.refused in said(upload)


def test_there_are_twenty_models_and_the_page_has_each() -> None:
    assert sum(not model.refused for model in EXPORTED) >= 20
    page = PAGE.read_text()
    assert [model.name for model in EXPORTED if f"| `{model.name}` |" not in page] == []


def test_the_names_of_classes_come_with_a_classification(
    inspected: Callable[..., Upload], actor: Actor, client: grpc.InferenceServerClient
) -> None:
    model = next(one for one in EXPORTED if one.name == "sklearn_forest")
    upload = inspected({name: path.read_bytes() for name, path in model.files.items()}, model_name="named")
    upload_publish(upload=upload, actor=actor, load=False)
    client.load_model("named")
    rows = grpc.InferInput("X", [4, 4], "FP32").set_data_from_numpy(
        np.array(model.inputs[0]["data"], np.float32).reshape(4, 4)
    )
    wanted = [grpc.InferRequestedOutput("output_probability", class_count=1)]
    answer = client.infer("named", [rows], outputs=wanted).as_numpy("output_probability")
    labels = next(tensor["data"] for tensor in model.outputs if tensor["name"] == "output_label")
    assert [row.decode().split(":")[2] for row in answer.ravel()] == labels
