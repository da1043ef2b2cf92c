"""The documentation names every setting, flag, parameter and file that there is."""

import json
import re
from pathlib import Path

import pytest
from tritonclient.grpc.model_config_pb2 import ModelConfig

from dashboard.shared.environment import VARIABLES
from repository.config import model_config
from repository.config.backends import KINDS
from repository.config.traffic import METRICS, policy_of, traffic_of, traffic_problem
from repository.config.validation_parameters import parameters
from tests.support.flags import known_flags
from tests.test_architecture import ROOMS, room_of
from tools.write_docs import TABLES, written

ROOT = Path(__file__).resolve().parent.parent
CONFIGURATION = (ROOT / "docs" / "configuration.md").read_text()
SERVER = (ROOT / "docs" / "server.md").read_text()
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text()
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *ROOT.glob("*/README.md"),
]


@pytest.mark.parametrize("name", sorted(VARIABLES))
def test_every_environment_variable_is_documented(name: str) -> None:
    assert f"| `{name}` |" in CONFIGURATION


def test_no_environment_variable_is_documented_that_does_not_exist() -> None:
    section = CONFIGURATION.partition("\n## The inference server")[0]
    documented = set(re.findall(r"^\| `([A-Z_]+)` \|", section, re.MULTILINE))
    assert documented - set(VARIABLES) == set()


@pytest.mark.parametrize("flag", sorted(known_flags()))
def test_every_flag_of_the_inference_server_is_documented(flag: str) -> None:
    if flag not in ("-h", "--help"):
        assert f"`{flag}`" in CONFIGURATION


def test_no_flag_is_documented_that_does_not_exist() -> None:
    rows = [line.split("|")[1] for line in CONFIGURATION.splitlines() if line.startswith("| `--")]
    documented = {flag for row in rows for flag in re.findall(r"`(--[a-z-]+)`", row)}
    assert documented - known_flags() == set()


@pytest.mark.parametrize("table", TABLES)
def test_a_table_that_code_declares_is_as_make_docs_writes_it(table: str) -> None:
    page, text = written(table)
    assert page.read_text() == text


def test_every_parameter_of_slipways_own_is_documented() -> None:
    reads = re.compile(r"""get_parameter\(\s*\w+,\s*"(\w+)\"""")
    for path in [*(ROOT / "serving").rglob("*.py"), *(ROOT / "dashboard").rglob("*.py")]:
        for name in reads.findall(path.read_text()):
            assert f"`slipway.{name}`" in CONFIGURATION, path.name


def test_the_examples_of_traffic_are_policies() -> None:
    section = CONFIGURATION.partition("\n### Traffic\n")[2].partition("\n### ")[0]
    policies = [json.loads(text) for text in re.findall(r"```json\n(.*?)```", section, re.DOTALL)]
    guardrails = [json.loads(text) for text in re.findall(r'`({"metric": .*?})`', section)]
    policies.append({"rollout": "r", "candidate": 2, "shadow": {"share": 1}, "guardrails": guardrails})
    assert [traffic_problem(policy, ModelConfig()) for policy in policies] == [""] * len(policies)
    assert {one.metric for policy in policies for one in policy_of(policy).guardrails} == set(METRICS)
    by_hand = SERVER.partition("\n### Rollouts by hand\n")[2].partition("\n### ")[0]
    for text in (section, by_hand):
        (example,) = re.findall(r"```\n( *(?:version_policy|parameters) .*?)```", text, re.DOTALL)
        config = model_config.parse(example)
        assert traffic_of(config) is not None
        assert list(parameters(config)) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), target


def test_the_guide_shows_every_picture_that_is_taken_for_it() -> None:
    shown = re.findall(r"\(images/guide/([^)]+)\)", (ROOT / "docs" / "guide.md").read_text())
    assert sorted(shown) == sorted(path.name for path in (ROOT / "docs" / "images" / "guide").iterdir())


def test_the_tests_that_compatibility_names_exist() -> None:
    named = re.findall(r"`(tests/[^`]+)`", (ROOT / "docs" / "compatibility.md").read_text())
    assert [name for name in named if not any(ROOT.glob(name.rstrip("/")))] == []


def test_every_make_target_has_a_line_in_make_help() -> None:
    makefile = (ROOT / "Makefile").read_text()
    phony = {name for line in re.findall(r"^\.PHONY: (.*)$", makefile, re.MULTILINE) for name in line.split()}
    helped = set(re.findall(r"^([a-z-]+):.*## ", makefile, re.MULTILINE))
    assert phony - helped == {"chromium"}


def rooms_on_the_page(package: str) -> list[str]:
    """The rooms of the table under "### <package>", in its order."""
    section = re.search(rf"^### {package}\b.*?(?=^##)", ARCHITECTURE, re.MULTILINE | re.DOTALL)
    assert section is not None
    return re.findall(r"^\| `([^`]+)` \|", section[0], re.MULTILINE)


@pytest.mark.parametrize("package", ROOMS)
def test_the_page_of_the_architecture_names_every_room_from_the_bottom_up(package: str) -> None:
    backends = {room_of(kind) for kind in KINDS.values() if room_of(kind).startswith("backends.")}
    rooms = ["backends/<backend>" if room in backends else room.replace(".", "/") for room in ROOMS[package]]
    assert rooms_on_the_page(package) == [f"{package}/{room}".rstrip("/") for room in dict.fromkeys(rooms)]


@pytest.mark.parametrize("folder", ["static/js", "tests"])
def test_the_page_of_the_architecture_names_every_folder(folder: str) -> None:
    folders = [path for path in (ROOT / folder).iterdir() if path.is_dir() and path.name != "__pycache__"]
    assert set(rooms_on_the_page(folder)) - {folder} == {str(path.relative_to(ROOT)) for path in folders}


@pytest.mark.parametrize(
    ("traveller", "home"),
    [
        ("An infer request", "serving"),
        ("An uploaded file", "dashboard"),
        ("An archive of TorchServe's that is registered", "serving"),
    ],
)
def test_the_files_that_a_traveller_passes_exist(traveller: str, home: str) -> None:
    section = re.search(rf"^### {traveller}$.*?(?=^##)", ARCHITECTURE, re.MULTILINE | re.DOTALL)
    assert section is not None
    files = re.findall(r"`([\w/]+\.(?:py|js))`", section[0])
    assert len(files) > 10
    assert [file for file in files if not (ROOT / home / file).exists() and not (ROOT / file).exists()] == []


PLACES = re.compile(r"`((?:repository|serving|dashboard|static|templates|tests|docs|tools|requirements)/[\w./-]*)`")


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "docs/glossary.md"])
def test_the_places_that_a_page_names_exist(page: str) -> None:
    places = PLACES.findall((ROOT / page).read_text())
    assert len(places) > 10
    assert [place for place in places if not (ROOT / place).exists()] == []
