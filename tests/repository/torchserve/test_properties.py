"""config.properties: Java's syntax, TorchServe's keys, and notes on those without a meaning here."""

from pathlib import Path

import javaproperties
import pytest

from repository.torchserve import java_properties
from repository.torchserve.options import ListenAddress, TorchServeOptions
from repository.torchserve.properties import KNOWN, InvalidProperties, read, torchserve_options
from tests.support.work_meter import grows_evenly

ROOT = Path(__file__).resolve().parents[3]


def options(
    tmp_path: Path, text: str, environment: dict[str, str] | None = None
) -> tuple[TorchServeOptions, list[str]]:
    path = tmp_path / "config.properties"
    path.write_text(text)
    return torchserve_options(read(path, environment or {}), environment or {})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a=1\nb: 2\nc 3\nd\t=\t4\ne", {"a": "1", "b": "2", "c": "3", "d": "4", "e": ""}),
        ("# a=1\n  ! b=2\n\n a=b=c", {"a": "b=c"}),
        ("a=one \\\n    two\\\n\tthree\nb=2", {"a": "one twothree", "b": "2"}),
        ("a=ends with two\\\\\nb=2", {"a": "ends with two\\", "b": "2"}),
        (r"a\=b\ c=\tx\u00e9\n\q", {"a=b c": "\txé\nq"}),
        ("a=1\r\nb=2\rc=3", {"a": "1", "b": "2", "c": "3"}),
        ("a=1\na=2", {"a": "2"}),
        (r"a=\ud83d\ude00", {"a": "😀"}),
        ("a=1 \\", {"a": "1 "}),
        ("a=1\\\n# no comment", {"a": "1# no comment"}),
        ("\\\n#a=1", {"#a": "1"}),
        (r"a=\ud83d", {"a": "\ufffd"}),
    ],
)
def test_a_property_file_is_read_as_java_reads_it(text: str, expected: dict[str, str]) -> None:
    assert java_properties.parse(text) == expected


def test_a_broken_escape_is_named_with_its_line() -> None:
    with pytest.raises(java_properties.MalformedProperties, match=r"line 2: expected four hexadecimal digits"):
        java_properties.parse("a=1\nb=\\u12x4")


def test_written_properties_are_read_back() -> None:
    values = {"a b": " x=y:z#!\\ ", "json": '{\n\t"ü": "😀"\n}', "": "empty key", "e": ""}
    assert java_properties.parse(javaproperties.dumps(values, comments="by hand")) == values


def test_the_lessons_file_is_understood(tmp_path: Path) -> None:
    found, notes = options(
        tmp_path,
        "inference_address=http://0.0.0.0:8080\nmanagement_address=http://0.0.0.0:8081\n"
        "metrics_address=http://0.0.0.0:8082\nnumber_of_netty_threads=32\njob_queue_size=1000\n"
        "install_py_dep_per_model=false\n# Batching\nbatch_size=16\n"
        "max_batch_delay=10 # milliseconds to wait for a full batch\n",
    )
    assert found.inference_address == ListenAddress("0.0.0.0", 8080)
    assert (found.job_queue_size, found.batch_size, found.max_batch_delay_ms) == (1000, 16, 10)
    assert len(notes) == 2
    assert "number_of_netty_threads has no meaning on this server" in notes[0]
    assert "max_batch_delay: the text after '#' is not part of the value 10" in notes[1]


def test_models_are_json_over_several_lines(tmp_path: Path) -> None:
    lines = ("models={", '  "noop": {', '    "1.0": {', '      "marName": "noop.mar",', '      "batchSize": 4', "}}}")
    text = "\\\n".join(lines)
    found, _ = options(tmp_path, text)
    assert found.models == {"noop": {"1.0": {"marName": "noop.mar", "batchSize": 4}}}
    with pytest.raises(InvalidProperties, match=r"each but the last ends with '\\'"):
        options(tmp_path, 'models={\n  "noop": {}\n}\n')
    with pytest.raises(InvalidProperties, match=r'models: expected \{"<model>"'):
        options(tmp_path, 'models={"noop": []}')


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("load_models=all", ("all",)),
        ("load_models=ALL", ("all",)),
        ("load_models=standalone", ()),
        ("load_models=a.mar, b = c.mar,", ("a.mar", "b=c.mar")),
        ("load_models=https://host/x.mar?key=a", ("https://host/x.mar?key=a",)),
    ],
)
def test_load_models_has_several_forms(tmp_path: Path, text: str, expected: tuple[str, ...]) -> None:
    assert options(tmp_path, text)[0].load_models == expected


def test_addresses_have_torchserves_forms_and_ports(tmp_path: Path) -> None:
    found, _ = options(tmp_path, "inference_address=http://host\nmanagement_address=unix:/tmp/x.sock\n")
    assert found.inference_address == ListenAddress("host", 80)
    assert found.management_address.socket == Path("/tmp/x.sock")
    assert found.metrics_address == ListenAddress("127.0.0.1", 8082)
    with pytest.raises(InvalidProperties, match="inference_address: expected http://<host>:<port>"):
        options(tmp_path, "inference_address=8080")


def test_variables_stand_in_values_and_for_keys(tmp_path: Path) -> None:
    environment = {"STORE": "/models", "TS_JOB_QUEUE_SIZE": "7", "TS_ALLOWED_URLS": "http://x/.*"}
    found, _ = options(tmp_path, "model_store=$$STORE$$/a\njob_queue_size=9", environment)
    assert (found.model_store, found.job_queue_size) == (Path("/models/a"), 9)
    found, _ = options(tmp_path, "job_queue_size=9\nenable_envvars_config=true", environment)
    assert found.job_queue_size == 7
    assert found.allowed_urls == TorchServeOptions().allowed_urls
    text = "enable_envvars_config=true\nuse_env_allowed_urls=true"
    assert options(tmp_path, text, environment)[0].allowed_urls == ("http://x/.*",)
    with pytest.raises(InvalidProperties, match="MISSING, which is not set"):
        options(tmp_path, "model_store=$$MISSING$$")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("job_queue_size=many", "job_queue_size: expected a whole number from 1 to 2147483647, got 'many'"),
        ("job_queue_size=99999999999", "job_queue_size: expected a whole number from 1 to 2147483647"),
        ("default_workers_per_model=100000", "default_workers_per_model: expected a whole number from 0 to 1024"),
        ("max_request_size=0", "max_request_size: expected a whole number from 1 to"),
        ("grpc_inference_address=http://0.0.0.0", "expected a host name or an IP address alone, got 'http://0.0.0.0'"),
        ("cors_allowed_origin=a\\r\\nX-Bad: y", "cors_allowed_origin: expected printable ASCII"),
        ("grpc_inference_port=70000", "grpc_inference_port: expected a port"),
        ("allowed_urls=[", "allowed_urls: expected regular expressions"),
        ("blacklist_env_vars=(", "blacklist_env_vars: expected a regular expression"),
        ("token_expiration_min=-1", "token_expiration_min: expected a number above 0"),
        ("inference_address=https://127.0.0.1:8443", "https, and enable_grpc_ssl, need private_key_file"),
        ("inference_address=https://127.0.0.1\nkeystore=k.p12", "openssl pkcs12 -in keystore.p12"),
    ],
)
def test_a_value_that_cannot_be_used_is_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InvalidProperties) as caught:
        options(tmp_path, text)
    assert message in str(caught.value)


def test_properties_without_a_meaning_are_reported_and_misspelled_ones_named(tmp_path: Path) -> None:
    _, notes = options(tmp_path, "vmargs=-Xmx4g\njob_queue_sise=3\nprefer_direct_buffer=true\nenable_metrics_api=ja")
    assert notes == [
        "config.properties: vmargs has no meaning on this server: there is no Java virtual machine",
        "config.properties: there is no property 'job_queue_sise'; is job_queue_size meant?",
        "config.properties: prefer_direct_buffer has no meaning on this server: there is no Java virtual machine",
        "config.properties: enable_metrics_api: expected true or false, got 'ja', which counts as false",
    ]


def test_a_password_is_kept_nowhere(tmp_path: Path) -> None:
    found, notes = options(tmp_path, "keystore=k.p12\nkeystore_pass=secret\nkeystore_type=PKCS12")
    assert "secret" not in f"{found}{found.properties}{notes}"


@pytest.mark.parametrize("key", KNOWN)
def test_every_property_is_documented(key: str) -> None:
    assert f"`{key}`" in (ROOT / "docs" / "configuration.md").read_text()


def test_a_key_without_a_value_has_its_default_and_an_ipv6_address_may_stand_in_brackets(tmp_path: Path) -> None:
    text = "grpc_inference_address=\ngrpc_management_address=[::1]\nts_header_key_sequence_id=\n"
    found, _ = options(tmp_path, text)
    assert found.grpc_inference_address == "127.0.0.1"
    assert found.grpc_management_address == "::1"
    assert found.header_key_sequence_id == "ts_request_sequence_id"


def test_many_properties_and_lines_take_work_that_grows_evenly() -> None:
    assert grows_evenly(lambda n: lambda: java_properties.parse("".join(f"key_{key}=1\n" for key in range(n))), 300)
    assert grows_evenly(lambda n: lambda: java_properties.parse("a=" + "x\\\n" * n), 300)
