"""One rule says what a change of the configuration does to a model that serves; the dashboard and the server both use it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from dashboard.configuration.services import config_preview
from repository.config import model_config, reload_rule
from repository.config.document import Document
from tests.support.serving_process import ServerProcess

PLAIN = """backend: "python"
max_batch_size: 4
input [ { name: "x" data_type: TYPE_FP32 dims: [ 1 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 1 ] } ]
"""
SEQUENCE = PLAIN + "sequence_batching { max_sequence_idle_microseconds: 5000000 }\n"
ONE, TWO = (f"instance_group [ {{ count: {count} kind: KIND_CPU }} ]\n" for count in (1, 2))
ISOLATION = 'parameters { key: "slipway.isolation" value { string_value: "\\"process\\"" } }\n'
RESIDENCY = 'parameters { key: "slipway.residency" value { string_value: "{\\"mode\\": \\"pinned\\"}" } }\n'
PARAMETER = 'parameters { key: "threads" value { string_value: "2" } }\n'

CHANGES = {
    "nothing": (PLAIN + ONE, "# a comment\n" + PLAIN + ONE, "none"),
    "the name of the folder": (PLAIN + ONE, 'name: "counted"\n' + PLAIN + ONE, "in_place"),
    "instances": (PLAIN + ONE, PLAIN + TWO, "in_place"),
    "the batcher": (PLAIN + ONE, PLAIN + ONE + "dynamic_batching { max_queue_delay_microseconds: 9 }", "in_place"),
    "residency": (PLAIN + ONE, PLAIN + ONE + RESIDENCY, "in_place"),
    "isolation": (PLAIN + ONE, PLAIN + ONE + ISOLATION, "reload"),
    "a parameter of the backend": (PLAIN + ONE, PLAIN + ONE + PARAMETER, "reload"),
    "instances of a sequence model": (SEQUENCE + ONE, SEQUENCE + TWO, "in_place"),
    "sequences": (PLAIN + ONE, SEQUENCE + ONE, "reload"),
    "the policy": (PLAIN + ONE, PLAIN + ONE + "version_policy { all { } }", "versions"),
}
SOURCE = """
from pathlib import Path


class TritonPythonModel:
    def initialize(self, args):
        with (Path(args["model_repository"]).parent.parent / "born.log").open("a") as file:
            file.write("born\\n")

    def execute(self, requests):
        return []
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = tmp_path_factory.mktemp("in_place") / "models" / "counted"
    (model / "1").mkdir(parents=True)
    (model / "1" / "model.py").write_text(SOURCE)
    (model / "config.pbtxt").write_text(PLAIN)
    return model


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[ServerProcess]:
    with ServerProcess(folder.parent, "--model-control-mode=explicit") as process:
        yield process


def load(server: ServerProcess, folder: Path, text: str) -> int:
    """How many instances were made for it."""
    log = folder.parent.parent / "born.log"
    log.write_text("")
    (folder / "config.pbtxt").write_text(text)
    assert server.post("/v2/repository/models/counted/load")[0] == 200
    return len(log.read_text().split())


@pytest.mark.django_db
@pytest.mark.parametrize("what", CHANGES)
def test_the_server_does_what_the_preview_promises(what: str, server: ServerProcess, folder: Path) -> None:
    before, after, effect = CHANGES[what]
    assert (
        config_preview(model_name="counted", base=Document.read(before), document=Document.read(after)).effect == effect
    )
    load(server, folder, before)
    old, new = (2 if TWO in text else 1 for text in (before, after))
    assert load(server, folder, after) == (new if effect == "reload" else new - old)


def test_where_gpus_choose_the_file_other_gpus_are_a_reload() -> None:
    files = 'cc_model_filenames { key: "9.0" value: "h100.plan" }\n'
    for text, expected in ((PLAIN, "in_place"), (PLAIN + files, "reload")):
        old, new = (model_config.parse(text + group) for group in (ONE, TWO))
        assert reload_rule.effect(old, new) == expected
