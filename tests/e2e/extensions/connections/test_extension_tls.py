"""TLS and mutual TLS over both protocols, with the stock clients and certificates made here."""

import socket
import ssl
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gevent.ssl
import grpc
import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from geventhttpclient.response import HTTPConnectionClosed
from tritonclient.utils import InferenceServerException

from tests.serving.frontends.frontends_in_thread import Frontends, frontends
from tests.support.certificates import Authority
from tests.support.model_factory import onnx_identity
from tests.support.serving_process import PATIENCE_S, ServerProcess

PROTOCOLS = ("http", "grpc")
X = np.arange(200_000, dtype=np.float32).reshape(1, -1)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("stranger"))


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    repository = tmp_path_factory.mktemp("models")
    onnx_identity(repository, "identity", "FP32")
    return repository


def options(authority: Authority, **more: Any) -> dict[str, Any]:
    files = authority.sign("server")
    both: dict[str, Any] = {"server_cert": files.cert, "server_key": files.key} | more
    return {f"{protocol}_{name}": value for protocol in PROTOCOLS for name, value in both.items()}


@pytest.fixture(scope="module")
def server(repository: Path, authority: Authority) -> Iterator[Frontends]:
    with frontends(repository, **options(authority, use_ssl=True)) as running:
        yield running


@pytest.fixture(scope="module")
def mutual(repository: Path, authority: Authority) -> Iterator[Frontends]:
    with frontends(repository, **options(authority, use_ssl_mutual=True, root_cert=authority.cert)) as running:
        yield running


def infer(server: Frontends, protocol: str, trusted: Path, own: Any = None) -> None:
    """One inference with the stock client, which checks the server by `trusted` and shows `own`."""
    library: Any = tritonclient.http if protocol == "http" else tritonclient.grpc
    client = _http_client(server, trusted, own) if protocol == "http" else _grpc_client(server, trusted, own)
    try:
        tensor = library.InferInput("INPUT0", list(X.shape), "FP32").set_data_from_numpy(X)
        assert np.array_equal(client.infer("identity", [tensor]).as_numpy("OUTPUT0"), X)
    finally:
        client.close()


def _http_client(server: Frontends, trusted: Path, own: Any) -> Any:
    def context() -> Any:
        made = gevent.ssl.create_default_context(cafile=str(trusted))
        if own:
            made.load_cert_chain(own.cert, own.key)
        return made

    return tritonclient.http.InferenceServerClient(server.http, ssl=True, ssl_context_factory=context)


def _grpc_client(server: Frontends, trusted: Path, own: Any) -> Any:
    files = {"private_key": str(own.key), "certificate_chain": str(own.cert)} if own else {}
    return tritonclient.grpc.InferenceServerClient(server.grpc, ssl=True, root_certificates=str(trusted), **files)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_inference_over_tls(server: Frontends, authority: Authority, protocol: str) -> None:
    infer(server, protocol, authority.cert)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_client_refuses_a_server_that_it_does_not_trust(
    server: Frontends, stranger: Authority, protocol: str
) -> None:
    with pytest.raises((InferenceServerException, ssl.SSLError)):
        infer(server, protocol, stranger.cert)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_mutual_tls_takes_clients_of_the_authority_alone(
    mutual: Frontends, authority: Authority, stranger: Authority, protocol: str
) -> None:
    infer(mutual, protocol, authority.cert, authority.sign("client"))
    for own in (None, stranger.sign("client")):
        with pytest.raises((InferenceServerException, HTTPConnectionClosed, OSError)):
            infer(mutual, protocol, authority.cert, own)
    infer(mutual, protocol, authority.cert, authority.sign("client"))


@pytest.mark.parametrize(("protocol", "application"), [("http", "http/1.1"), ("grpc", "h2")])
def test_the_protocol_is_agreed_and_old_tls_refused(
    server: Frontends, authority: Authority, protocol: str, application: str
) -> None:
    context = ssl.create_default_context(cafile=authority.cert)
    context.set_alpn_protocols([application])
    address = (getattr(server, protocol).split(":")[0], int(getattr(server, protocol).split(":")[1]))
    with (
        socket.create_connection(address, PATIENCE_S) as raw,
        context.wrap_socket(raw, server_hostname="localhost") as tls,
    ):
        assert tls.selected_alpn_protocol() == application
        assert tls.version() in ("TLSv1.2", "TLSv1.3")
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    with socket.create_connection(address, PATIENCE_S) as raw, pytest.raises((ssl.SSLError, OSError)):
        context.wrap_socket(raw, server_hostname="localhost")


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_plain_text_on_a_tls_port_harms_nobody(server: Frontends, authority: Authority, protocol: str) -> None:
    host, port = getattr(server, protocol).split(":")
    with socket.create_connection((host, int(port)), PATIENCE_S) as raw:
        raw.sendall(b"GET /v2 HTTP/1.1\r\nHost: x\r\n\r\n")
        try:
            raw.recv(1000)
        except ConnectionResetError:
            pass
    infer(server, protocol, authority.cert)


def test_an_http_refusal_over_tls_is_readable(server: Frontends, authority: Authority) -> None:
    """A connection that TLS cannot half-close still tells why it ends."""
    context = ssl.create_default_context(cafile=authority.cert)
    host, port = server.http.split(":")
    with (
        socket.create_connection((host, int(port)), PATIENCE_S) as raw,
        context.wrap_socket(raw, server_hostname="localhost") as tls,
    ):
        tls.sendall(b"nonsense\r\n\r\n")
        assert tls.recv(1000).startswith(b"HTTP/1.1 400")


def test_a_broken_http2_peer_over_tls_is_told(server: Frontends, authority: Authority) -> None:
    context = ssl.create_default_context(cafile=authority.cert)
    host, port = server.grpc.split(":")
    with (
        socket.create_connection((host, int(port)), PATIENCE_S) as raw,
        context.wrap_socket(raw, server_hostname="localhost") as tls,
    ):
        tls.sendall(b"no HTTP/2 preface at all, not even close")
        while tls.recv(1000):
            pass


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--grpc-use-ssl=true"], "--grpc-use-ssl needs --grpc-server-cert"),
        (
            ["--http-use-ssl=true", "--http-server-cert=/no", "--http-server-key=/no"],
            "--http-server-cert cannot be used",
        ),
    ],
)
def test_a_server_without_its_files_ends_with_the_reason(repository: Path, flags: list[str], said: str) -> None:
    with ServerProcess(repository, *flags, wait="") as server:
        assert server.process is not None
        assert server.process.wait(PATIENCE_S) == 1
        assert said in server.log


def test_the_secure_channel_of_grpc_itself_works(server: Frontends, authority: Authority) -> None:
    credentials = grpc.ssl_channel_credentials(authority.cert.read_bytes())
    with grpc.secure_channel(server.grpc, credentials) as channel:
        grpc.channel_ready_future(channel).result(PATIENCE_S)
