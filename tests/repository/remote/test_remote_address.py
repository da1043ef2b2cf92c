"""Addresses of repositories in the cloud have the same meaning as in tritonserver."""

import json
from pathlib import Path

import pytest

from repository.core.errors import InvalidName, RepositoryError
from repository.remote.address import is_remote, parse, storage_options


@pytest.mark.parametrize(
    ("text", "protocol", "url", "endpoint", "account"),
    [
        ("s3://my-models/production/", "s3", "s3://my-models/production", "", ""),
        ("s3://host:9000/bucket/path", "s3", "s3://bucket/path", "http://host:9000", ""),
        ("s3://https://host:9000/bucket/path", "s3", "s3://bucket/path", "https://host:9000", ""),
        ("s3://http://host/bucket", "s3", "s3://bucket", "http://host", ""),
        ("gs://bucket/path", "gs", "gs://bucket/path", "", ""),
        ("as://account/container/path", "abfs", "abfs://container/path", "", "account"),
        ("as://account.blob.core.windows.net/container", "abfs", "abfs://container", "", "account"),
        ("sftp://host/path", "sftp", "sftp://host/path", "", ""),
    ],
)
def test_an_address_is_read_as_triton_writes_it(
    text: str, protocol: str, url: str, endpoint: str, account: str
) -> None:
    address = parse(text)
    assert (address.protocol, address.url, address.endpoint, address.account) == (protocol, url, endpoint, account)


@pytest.mark.parametrize("text", ["s3://", "s3://host:9000", "gs://", "as://account", "s3://host:9000/"])
def test_an_address_without_a_bucket_is_refused(text: str) -> None:
    with pytest.raises(InvalidName, match="expected"):
        parse(text)


def test_a_folder_is_no_address() -> None:
    assert not is_remote("/models")
    assert not is_remote("models:/x")
    assert is_remote("s3://x")


def test_a_password_in_an_address_is_not_shown() -> None:
    address = parse("ftp://user:password@host/models")
    assert address.without_secrets == "ftp://host/models"
    assert "password" not in repr(address)


def test_a_host_of_its_own_is_asked_by_path(tmp_path: Path) -> None:
    options = storage_options(parse("s3://host:9000/bucket"), {})
    assert options["client_kwargs"] == {"endpoint_url": "http://host:9000"}
    assert options["config_kwargs"]["s3"] == {"addressing_style": "path"}


def test_the_longest_matching_name_of_the_credentials_file_counts(tmp_path: Path) -> None:
    names = {"": {"key_id": "all", "secret_key": "s"}, "s3://bucket-2": {"key_id": "second", "secret_key": "s"}}
    path = tmp_path / "credentials.json"
    path.write_text(json.dumps({"s3": names, "gs": {"": "/key.json"}, "as": {"": {"account_key": "k"}}}))
    environment = {"TRITON_CLOUD_CREDENTIAL_PATH": str(path)}
    assert storage_options(parse("s3://bucket-2/models"), environment)["key"] == "second"
    assert storage_options(parse("s3://bucket-3/models"), environment)["key"] == "all"
    assert storage_options(parse("gs://bucket"), environment) == {"token": "/key.json"}
    azure = storage_options(parse("as://account/container"), environment)
    assert azure == {"account_name": "account", "account_key": "k"}


def test_a_credentials_file_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "credentials.json"
    path.write_text("{")
    with pytest.raises(RepositoryError, match="not a readable JSON object"):
        storage_options(parse("s3://bucket"), {"TRITON_CLOUD_CREDENTIAL_PATH": str(path)})


def test_azure_keys_and_identities_come_from_tritons_variables() -> None:
    address = parse("as://account/container")
    key = {"AZURE_STORAGE_KEY": "k"}
    assert storage_options(address, key)["account_key"] == "k"
    assert storage_options(address, key | {"AZURE_STORAGE_AUTH_TYPE": "managed_identity"})["anon"] is False
