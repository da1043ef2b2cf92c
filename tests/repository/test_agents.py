"""Repository agents: their settings are checked like the rest of a configuration, and they are asked in order."""

import hashlib
from pathlib import Path

import pytest

from repository.agents import table as agents
from repository.config.model_config import parse
from repository.config.validation import validate
from repository.core.errors import InvalidConfig, RepositoryError

MD5 = hashlib.md5(b"weights", usedforsecurity=False).hexdigest()
SHA256 = hashlib.sha256(b"weights").hexdigest()
BASE = """name: "m" backend: "onnxruntime"
input { name: "x" data_type: TYPE_FP32 dims: [ 1 ] } output { name: "y" data_type: TYPE_FP32 dims: [ 1 ] }
"""


def agent(*parameters: tuple[str, str], name: str = "checksum") -> str:
    listed = " ".join(f'parameters {{ key: "{key}" value: "{value}" }}' for key, value in parameters)
    return f'agents {{ name: "{name}" {listed} }}'


def asking(*parameters: tuple[str, str], name: str = "checksum") -> str:
    return f"model_repository_agents {{ {agent(*parameters, name=name)} }}"


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "m"
    (folder / "1").mkdir(parents=True)
    (folder / "1" / "model.onnx").write_bytes(b"weights")
    return folder


def refusal(model_dir: Path, settings: str) -> str:
    with pytest.raises(RepositoryError) as caught:
        agents.approve(parse(BASE + settings), model_dir)
    return caught.value.message


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("CRC32:1/model.onnx", MD5, "expected MD5:<file> or SHA256:<file>, not 'CRC32:1/model.onnx'"),
        ("1/model.onnx", MD5, "expected MD5:<file>"),
        ("MD5:", MD5, "'' does not name a file"),
        ("MD5:../other/1/model.onnx", MD5, "inside the model's folder"),
        ("MD5:1/model.onnx", MD5[1:], "the 32 hexadecimal digits of the file's MD5 digest"),
        ("SHA256:1/model.onnx", MD5, "the 64 hexadecimal digits"),
        ("md5:1/model.onnx", "g" * 32, "hexadecimal"),
    ],
)
def test_a_wrong_parameter_is_a_problem_of_the_configuration(model_dir: Path, key: str, value: str, says: str) -> None:
    problems = validate(parse(BASE + asking((key, value))))
    field = f'model_repository_agents.agents[0].parameters["{key}"]'
    assert [problem for problem in problems if problem.field == field and says in problem.message], problems
    assert says in refusal(model_dir, asking((key, value)))


def test_an_unknown_agent_is_a_problem_that_names_those_there_are(model_dir: Path) -> None:
    [problem] = validate(parse(BASE + asking(name="decrypt")))
    assert problem == (
        "model_repository_agents.agents[0].name",
        "there is no repository agent 'decrypt'; there is checksum",
    )
    with pytest.raises(InvalidConfig, match="there is checksum"):
        agents.approve(parse(BASE + asking(name="decrypt")), model_dir)


def test_files_with_the_right_digests_are_approved(model_dir: Path) -> None:
    right = asking(("MD5:1/model.onnx", MD5.upper()), ("sha256:1/model.onnx", SHA256))
    agents.approve(parse(BASE + right), model_dir)
    agents.approve(parse(BASE + asking()), model_dir)
    agents.approve(parse(BASE), model_dir)


def test_a_wrong_digest_is_refused_with_both(model_dir: Path) -> None:
    (model_dir / "1" / "model.onnx").write_bytes(b"others")
    found = hashlib.sha256(b"others").hexdigest()
    assert refusal(model_dir, asking(("SHA256:1/model.onnx", SHA256))) == (
        "repository agent 'checksum' refuses the model: the SHA256 digest of '1/model.onnx' is "
        f"{found}, but the configuration expects {SHA256}"
    )


def test_a_file_that_is_missing_or_elsewhere_is_refused(model_dir: Path) -> None:
    assert "no file 'labels.txt'" in refusal(model_dir, asking(("MD5:labels.txt", MD5)))
    assert "no file '1'" in refusal(model_dir, asking(("MD5:1", MD5)))
    (model_dir.parent / "outside").write_bytes(b"weights")
    (model_dir / "link").symlink_to("../outside")
    assert "leads out of the model's folder" in refusal(model_dir, asking(("MD5:link", MD5)))


def test_agents_are_asked_in_the_order_of_the_configuration(model_dir: Path) -> None:
    right, wrong, worse = (agent((f"MD5:{file}", MD5)) for file in ("1/model.onnx", "nowhere", "elsewhere"))
    assert "'nowhere'" in refusal(model_dir, f"model_repository_agents {{ {right} {wrong} {worse} }}")
    assert "'elsewhere'" in refusal(model_dir, f"model_repository_agents {{ {right} {worse} {wrong} }}")
