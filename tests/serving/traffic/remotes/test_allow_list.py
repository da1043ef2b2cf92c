"""The servers that may be called: exactly those of the file, whose secrets are shown to nobody."""

from pathlib import Path

import pytest

from serving.core.errors import Code, ServingError
from serving.traffic.remotes.allow_list import RemoteAllowList
from tests.serving.traffic.remotes.asking import allow_list

SECRET = "Bearer hunter2"


def refusal(listed: RemoteAllowList, url: str) -> str:
    with pytest.raises(ServingError) as caught:
        listed.of(url)
    assert caught.value.code is Code.INVALID_ARG
    assert "hunter2" not in caught.value.message
    return caught.value.message


@pytest.mark.parametrize(
    ("listed", "url"),
    [
        ("http://fast:8080", "http://fast:8080"),
        ("http://fast:8080/", "http://FAST:8080/predict"),
        ("http://fast", "http://fast:80/v1/predict/"),
        ("https://fast/team", "https://fast:443/team/model"),
        ("http://[::1]:8000", "http://[::1]:8000/x"),
    ],
)
def test_an_address_below_a_listed_one_may_be_called(tmp_path: Path, listed: str, url: str) -> None:
    access = allow_list(tmp_path, {listed: {"headers": {"Authorization": SECRET}}}).of(url)
    assert access.headers == (("Authorization", SECRET),)


@pytest.mark.parametrize(
    "url",
    [
        "http://fast:8081/team",
        "http://fast.evil:8080/team",
        "https://fast:8080/team",
        "http://fast:8080/teammates",
        "http://fast:8080/",
        "http://fast:8080/team/../admin",
        "http://fast:8080/team/%2e%2e/admin",
        "http://fast:8080/team//x",
        "http://fast:8080@evil:8080/team",
        "http://user:pass@fast:8080/team",
        "http://fast:8080\\@evil/team",
        "http://fast:8080/team?x=1",
        "http://fast:8080/team#x",
        "http://fast:99999/team",
        "http://fast:8080/te am",
        "http://fast:8080\r\nHost: evil/team",
        "ftp://fast:8080/team",
        "file:///etc/passwd",
        "//fast:8080/team",
        "",
    ],
)
def test_an_address_that_is_not_listed_is_refused(tmp_path: Path, url: str) -> None:
    refusal(allow_list(tmp_path, {"http://fast:8080/team": {"headers": {"Authorization": SECRET}}}), url)


def test_without_a_file_nothing_may_be_called_and_the_error_says_what_to_do() -> None:
    said = refusal(RemoteAllowList(None), "http://fast:8080/predict")
    assert '--traffic-remotes=FILE, a JSON file with {"http://fast:8080": {}}' in said


def test_a_user_and_password_in_a_url_are_not_repeated(tmp_path: Path) -> None:
    said = refusal(allow_list(tmp_path, {}), "http://user:hunter2@fast:8080")
    assert "may hold no user or password" in said


@pytest.mark.parametrize(
    "row",
    [
        [],
        {"header": {}},
        {"headers": {"Authorization": 7}},
        {"headers": {"Authorization": f"{SECRET}\r\nX: y"}},
        {"headers": {"Content-Length": "0"}},
        {"headers": {"a b": "x"}},
        {"ca": 1},
    ],
)
def test_a_file_that_is_not_understood_is_refused_without_its_secrets(tmp_path: Path, row: object) -> None:
    assert "http://fast:8080" in refusal(allow_list(tmp_path, {"http://fast:8080": row}), "http://fast:8080")


def test_the_file_is_read_anew_for_each_policy(tmp_path: Path) -> None:
    listed = allow_list(tmp_path, {})
    assert "not listed" in refusal(listed, "http://fast:8080")
    allow_list(tmp_path, {"http://fast:8080": {}})
    assert listed.of("http://fast:8080").headers == ()
    (tmp_path / "remotes.json").write_text("{")
    assert "not understood" in refusal(listed, "http://fast:8080")
    (tmp_path / "remotes.json").unlink()
    assert "cannot be read" in refusal(listed, "http://fast:8080")


def test_headers_are_in_no_representation(tmp_path: Path) -> None:
    access = allow_list(tmp_path, {"http://fast:8080": {"headers": {"Authorization": SECRET}}}).of("http://fast:8080")
    assert "hunter2" not in repr(access)
    assert "hunter2" not in str(access)
