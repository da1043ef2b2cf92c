"""docs/compatibility.md: a row for every flag of tritonserver, a test for all that works, every test of an extension named."""

import re
from pathlib import Path
from typing import NamedTuple

import pytest

from serving.cli.command_line import REFUSED, WITHOUT_EFFECT, parse
from tests.support.flags import known_flags

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "compatibility.md").read_text()
STATES = ("works", "differs", "not", "taken, without effect", "see ", "the same", "Slipway's own")
# tritonserver --help of 26.09, with what is deprecated.
FLAGS = """
allow-client-shm allow-cpu-metrics allow-gpu-metrics allow-grpc allow-http allow-metrics allow-sagemaker allow-vertex-ai
backend-config backend-directory buffer-manager-thread-count cache-config cache-directory cuda-memory-pool-byte-size
cuda-virtual-address-size disable-auto-complete-config enable-peer-access exit-on-error exit-timeout-secs grpc-address
grpc-header-forward-pattern grpc-http2-max-ping-strikes grpc-http2-max-pings-without-data
grpc-http2-min-recv-ping-interval-without-data grpc-infer-allocation-pool-size grpc-infer-response-compression-level
grpc-infer-thread-count grpc-keepalive-permit-without-calls grpc-keepalive-time grpc-keepalive-timeout grpc-max-connection-age
grpc-max-connection-age-grace grpc-max-response-pool-size grpc-port grpc-restricted-protocol grpc-root-cert grpc-server-cert
grpc-server-key grpc-use-ssl grpc-use-ssl-mutual help host-policy http-address http-header-forward-pattern http-max-input-size
http-port http-restricted-api http-thread-count id load-model log-error log-file log-format log-info log-verbose log-warning
metrics-address metrics-config metrics-interval-ms metrics-port min-supported-compute-capability model-config-name
model-control-mode model-load-gpu-limit model-load-retry-count model-load-thread-count model-namespacing model-repository
model-store pinned-memory-pool-byte-size rate-limit rate-limit-resource repoagent-directory repository-poll-secs
response-cache-byte-size reuse-grpc-port reuse-http-port sagemaker-port sagemaker-safe-port-range sagemaker-thread-count
strict-model-config strict-readiness trace-config trace-count trace-file trace-level trace-log-frequency trace-rate
vertex-ai-default-model vertex-ai-port vertex-ai-thread-count
"""


class Row(NamedTuple):
    feature: str
    state: str
    tests: str


def rows(text: str) -> list[Row]:
    lines = [line for line in text.splitlines() if line.startswith("| ") and not line.startswith("| ---")]
    cells = [[cell.strip() for cell in line.strip().removeprefix("|").removesuffix("|").split(" | ")] for line in lines]
    assert [line for line, row in zip(lines, cells, strict=True) if len(row) != 3] == []
    return [Row(*row) for row in cells if row[1] != "state"]


ROWS = rows(PAGE)
COMMAND_LINE = rows(PAGE.partition("\n## The command line\n")[2].partition("\n## ")[0])


def flags_of(row: Row) -> list[str]:
    return re.findall(r"`(--[a-z0-9-]+)`", row.feature)


@pytest.mark.parametrize("flag", FLAGS.split())
def test_every_flag_of_tritonserver_is_taken_or_refused_with_its_reason_and_has_one_row(
    flag: str, tmp_path: Path
) -> None:
    flag = f"--{flag}"
    assert flag in known_flags()
    (row,) = [row for row in COMMAND_LINE if flag in flags_of(row)]
    if flag in WITHOUT_EFFECT:
        assert row.state.startswith(("taken, without effect", "not")), row
        assert parse([f"--model-repository={tmp_path}", flag, "1"])[1] == [f"{flag} has no effect on this server"]
    elif flag in REFUSED:
        assert row.state.startswith("not"), row
    else:
        assert row.state.startswith(("works", "differs")), row


def test_the_page_names_no_flag_that_tritonserver_does_not_have() -> None:
    assert {flag for row in COMMAND_LINE for flag in flags_of(row)} == {f"--{flag}" for flag in FLAGS.split()}


def what_is_wrong(row: Row) -> str:
    named = re.findall(r"`(tests/[^`]+)`", row.tests)
    if not row.state.startswith(STATES):
        return "no such state"
    if missing := [name for name in named if not list(ROOT.glob(name))]:
        return f"no such test: {missing}"
    if row.state.startswith(("works", "differs", "Slipway's own")) and not named:
        return "no test shows it"
    return "no reason" if row.state.strip(": ") in ("differs", "not") else ""


def test_a_row_says_what_is_so_and_names_the_tests_that_show_it() -> None:
    assert {row.feature: wrong for row in ROWS if (wrong := what_is_wrong(row))} == {}


def test_every_test_of_an_extension_shows_something_on_the_page() -> None:
    named = {path for row in ROWS for name in re.findall(r"`(tests/[^`]+)`", row.tests) for path in ROOT.glob(name)}
    tests = (ROOT / "tests" / "e2e" / "extensions").rglob("test_extension_*.py")
    assert [path.name for path in tests if path not in named] == []
