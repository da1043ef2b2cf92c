"""Which web addresses are read: those on the allow-list, also behind redirects, and never a metadata service."""

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured

from dashboard.shared.environment import read as read_environment
from dashboard.shared.exceptions import DashboardError, Forbidden, Invalid, NotFound, Unavailable
from dashboard.uploads.sources import http_client
from dashboard.uploads.sources.base import SourceFile
from dashboard.uploads.sources.http_client import parse_location
from dashboard.uploads.sources.url import Url
from tests.dashboard.uploads.file_server import FileServer, WebFile, file_server
from tests.support.certificates import Authority


@pytest.fixture
def web(settings: Any) -> Iterator[FileServer]:
    with file_server() as server:
        settings.SOURCE_URLS = [f"{server.url}/models"]
        server.files["/models/model.onnx"] = WebFile(b"0123456789")
        yield server


@pytest.fixture
def resolves_to(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """host -> the address that the name server gives for it."""
    names: dict[str, str] = {}
    real = socket.getaddrinfo

    def resolve(host: str, *given: Any, **more: Any) -> Any:
        return real(names.get(host, host), *given, **more)

    monkeypatch.setattr(http_client.socket, "getaddrinfo", resolve)
    return names


def listed(address: str) -> SourceFile:
    [row] = Url().files({"address": address})
    return row


def test_a_file_below_an_allowed_address_is_listed_and_read(web: FileServer) -> None:
    row = listed(f"{web.url}/models/model.onnx?download=true#part")
    assert row == SourceFile("model.onnx", 10, '"1"')
    assert b"".join(Url().read({"address": f"{web.url}/models/model.onnx"}, row, 4)) == b"456789"
    assert web.requests[0][0] == "/models/model.onnx?download=true"


@pytest.mark.parametrize(
    "address",
    [
        "{0}/other/model.onnx",
        "{0}/modelsx/model.onnx",
        "{0}/models/../other/model.onnx",
        "{0}/models/%2e%2e/other/model.onnx",
        "{0}/models/..%2fother/model.onnx",
        "http://localhost:1/models/model.onnx",
        "https://127.0.0.1/models/model.onnx",
        "http://user:secret@127.0.0.1/models/model.onnx",
        "file:///etc/passwd",
        "http:///models",
        "http://[::1/",
        "{0}/models/",
        "{0}/models/a b",
        "{0}/models/\r\nX: y",
    ],
)
def test_any_other_address_is_refused_before_a_request(web: FileServer, address: str) -> None:
    with pytest.raises((Forbidden, Invalid)):
        listed(address.format(web.url))
    assert web.requests == []


def test_a_redirect_is_followed_only_to_an_allowed_place(web: FileServer, settings: Any) -> None:
    web.files["/models/moved.onnx"] = WebFile(redirect="/models/model.onnx")
    assert listed(f"{web.url}/models/moved.onnx").size == 10
    with file_server() as other:
        other.files["/model.onnx"] = WebFile(b"other")
        web.files["/models/moved.onnx"] = WebFile(redirect=f"{other.url}/model.onnx")
        with pytest.raises(Forbidden, match=r"redirects to 127\.0\.0\.1, which is not allowed"):
            listed(f"{web.url}/models/moved.onnx")
        assert other.requests == []
        settings.SOURCE_URLS = [*settings.SOURCE_URLS, other.url]
        assert listed(f"{web.url}/models/moved.onnx").size == 5
    for target in ("http://169.254.169.254/latest/meta-data/", "file:///etc/passwd", "gopher://127.0.0.1/"):
        web.files["/models/moved.onnx"] = WebFile(redirect=target)
        with pytest.raises((Forbidden, Invalid)):
            listed(f"{web.url}/models/moved.onnx")
    web.files["/models/moved.onnx"] = WebFile(redirect="/models/moved.onnx")
    with pytest.raises(Invalid, match="redirects more than 5 times"):
        listed(f"{web.url}/models/moved.onnx")


@pytest.mark.parametrize(
    "address",
    [
        *("169.254.169.254", "::ffff:169.254.169.254", "fe80::1", "fd00:ec2::254", "168.63.129.16", "100.100.100.200"),
        *("127.0.0.1", "::1", "0.0.0.0", "::", "224.0.0.1", "64:ff9b::a9fe:a9fe", "2002:a9fe:a9fe::"),
    ],
)
def test_a_name_that_stands_for_a_forbidden_address_is_refused(
    settings: Any, resolves_to: dict[str, str], address: str
) -> None:
    settings.SOURCE_URLS = ["http://models.example"]
    resolves_to["models.example"] = address
    with pytest.raises(Forbidden, match=r"models\.example stands for an address that is never read"):
        listed("http://models.example/model.onnx")


def test_an_address_of_a_metadata_service_is_refused_even_if_it_is_allowed(settings: Any) -> None:
    settings.SOURCE_URLS = ["http://169.254.169.254"]
    with pytest.raises(Forbidden, match="never read"):
        listed("http://169.254.169.254/latest/meta-data")


def test_the_connection_goes_to_the_address_that_was_checked(
    web: FileServer, settings: Any, resolves_to: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.SOURCE_URLS = [f"http://localhost:{web.port}/models"]
    asked: list[str] = []
    resolve = http_client.socket.getaddrinfo
    monkeypatch.setattr(
        http_client.socket,
        "getaddrinfo",
        lambda host, *more, **given: asked.append(host) or resolve("127.0.0.1", *more, **given),
    )
    assert listed(f"http://localhost:{web.port}/models/model.onnx").size == 10
    assert asked == ["localhost"]
    assert web.requests[0][1]["Host"] == f"localhost:{web.port}"


def test_what_a_server_answers_otherwise_is_told(web: FileServer) -> None:
    for status, error in ((403, Forbidden), (404, NotFound), (503, Unavailable), (418, Invalid)):
        web.files["/models/model.onnx"] = WebFile(status=status)
        with pytest.raises(error, match=f"status {status}"):
            listed(f"{web.url}/models/model.onnx")
    web.files["/models/model.onnx"] = WebFile(b"abc", tells_length=False)
    with pytest.raises(Invalid, match="does not say how long"):
        listed(f"{web.url}/models/model.onnx")


def test_a_server_that_is_slow_or_silent_is_given_up(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_client, "REQUEST_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        settings.SOURCE_URLS = [url]
        with pytest.raises(Unavailable, match="does not answer in time"):
            listed(f"{url}/model.onnx")
    with pytest.raises(Unavailable):
        listed(f"{url}/model.onnx")


def test_a_body_that_trickles_is_given_up(web: FileServer, monkeypatch: pytest.MonkeyPatch) -> None:
    row = listed(f"{web.url}/models/model.onnx")
    monkeypatch.setattr(http_client, "SPEED_S", 0.0)
    with pytest.raises(Unavailable, match="sends less than"):
        list(Url().read({"address": f"{web.url}/models/model.onnx"}, row, 0))


def test_https_is_read_only_with_a_certificate_that_holds(
    settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority(tmp_path / "authority")
    with file_server(authority.sign("server")) as server, file_server() as plain:
        settings.SOURCE_URLS = [server.url]
        server.files["/model.onnx"] = WebFile(b"0123456789")
        with pytest.raises(Unavailable, match=r"no safe connection to 127\.0\.0\.1"):
            listed(f"{server.url}/model.onnx")
        monkeypatch.setenv("SSL_CERT_FILE", str(authority.cert))
        assert listed(f"{server.url}/model.onnx").size == 10
        server.files["/model.onnx"] = WebFile(redirect=f"{plain.url}/model.onnx")
        with pytest.raises(Forbidden, match="redirects"):
            listed(f"{server.url}/model.onnx")
        with pytest.raises(Forbidden):
            listed(f"{server.url.replace('https', 'http')}/model.onnx")


def test_locations_are_compared_in_their_normal_form() -> None:
    allowed = parse_location("https://Models.Example:443/pub%6cic/")
    assert allowed == parse_location("https://models.example/public/")
    assert parse_location("https://models.example/public/x").is_below(allowed)
    assert not parse_location("http://models.example/public/x").is_below(allowed)
    assert not parse_location("https://models.example/publicity").is_below(allowed)
    assert parse_location("https://models.example./x").host == "models.example"


@pytest.mark.parametrize("value", ["ftp://host", "host", "https://", "https://user:pw@host", "https://host/?a=b"])
def test_a_setting_that_is_no_web_address_is_refused(value: str) -> None:
    with pytest.raises(ImproperlyConfigured, match="SLIPWAY_SOURCE_URLS must be a web address"):
        read_environment({"SLIPWAY_SOURCE_URLS": value})


def test_errors_are_those_that_people_read(web: FileServer) -> None:
    with pytest.raises(DashboardError):
        listed(f"{web.url}/models/none.onnx")
