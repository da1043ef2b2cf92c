"""TorchServe's config.properties: its keys, the meaning of each value, and the keys without a meaning on this server.

read(path, environment) -> Properties       the values of the file, with environment variables filled in
torchserve_options(properties) -> TorchServeOptions, and a sentence for each ignored key

Source: docs/configuration.md of TorchServe 0.12; where that page says nothing, the behaviour of TorchServe.
"""

import difflib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from repository.torchserve.java_properties import MalformedProperties, decode, parse
from repository.torchserve.options import ListenAddress, ModelsSettings, TorchServeOptions
from repository.torchserve.version_settings import MAX_WORKERS

MAX_FILE = 16 << 20  # bytes; a snapshot contains all models

# Keys that tune TorchServe's Java program or its parts.
WITHOUT_MEANING = {
    "vmargs": "there is no Java virtual machine",
    "number_of_netty_threads": "there is no Netty; --frontend-workers has more processes speak HTTP and gRPC",
    "netty_client_threads": "there is no Netty; --frontend-workers has more processes speak HTTP and gRPC",
    "prefer_direct_buffer": "there is no Java virtual machine",
    "use_native_io": "there is no Netty",
    "io_ratio": "there is no Netty",
    "async_logging": "there is no Log4j",
    "initial_worker_port": "workers have no ports",
    "initial_distribution_port": "workers have no ports",
    "model_server_home": "this server finds its own files",
    "plugins_path": "this server loads no Java plugins",
    "cpp_log_config": "there is no C++ backend",
    "cpu_launcher_enable": "there is no CPU launcher; --host-policy binds instances to cores",
    "cpu_launcher_args": "there is no CPU launcher; --host-policy binds instances to cores",
    "ipex_enable": "there is no Intel extension for PyTorch",
    "ipex_gpu_enable": "there is no Intel extension for PyTorch",
    "snapshot_store": "snapshots are in the folder of the logs",
    "debug": "there is no Java virtual machine",
    "python": "models run under this server's Python, or one of their own",
    "version": "it is this server's own",
    "tsConfigFile": "",  # TorchServe writes it into snapshots
    "plugins_config": "this server loads no Java plugins",
    "system_metrics_cmd": "this server reads the machine's metrics itself",
}
MOST = 2**31 - 1  # the largest whole number: the limit of Java's int
MOST_SECONDS = 10**9 - 1  # the longest timeout
KEYSTORE = ("keystore", "keystore_pass", "keystore_type")
_SECRET = ("keystore_pass",)
_ADDRESS = re.compile(r"(https?)://(\[[^\]/]+\]|[^:/\[\]@\s]+)(?::([0-9]{1,5}))?/?|unix:(/.*)", re.IGNORECASE)
_HOST = re.compile(r"[\w.-]+|\[?[0-9a-fA-F:.]+(?:%\w+)?\]?", re.ASCII)
_VARIABLE = re.compile(r"\$\$([^$]+[^$])\$\$")
_INTEGER = re.compile(r"[+-]?[0-9]{1,18}", re.ASCII)


class InvalidProperties(Exception):
    """config.properties cannot be used. The message is one sentence for the author of the file."""


@dataclass(frozen=True, slots=True)
class Properties:
    """The values of a file. name: the name of the file in messages."""

    name: str = "config.properties"
    values: Mapping[str, str] = field(default_factory=dict, repr=False)


def read(path: Path, environment: Mapping[str, str]) -> Properties:
    """Read a file, and replace each `$$NAME$$` by the environment variable. If the file has enable_envvars_config=true,
    variables such as TS_<KEY> set its keys."""
    return with_environment(_as_written(path), environment)


def check_snapshot(path: Path) -> None:
    """Raise InvalidProperties for a snapshot that is cut off or empty, and for a file that is no snapshot."""
    properties = _as_written(path)
    if "model_snapshot" not in properties.values:
        raise InvalidProperties(f"{path.name} has no model_snapshot")
    _snapshot(_Reader(properties))


def _as_written(path: Path) -> Properties:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE + 1)
    except OSError as error:
        raise InvalidProperties(f"{path.name} cannot be read: {error.strerror}") from None
    if len(content) > MAX_FILE:
        raise InvalidProperties(f"{path.name} is larger than {MAX_FILE} bytes, so it is no config.properties")
    try:
        values = parse(decode(content))
    except MalformedProperties as error:
        raise InvalidProperties(f"{path.name}, {error}") from None
    return Properties(path.name, values)


def with_environment(properties: Properties, environment: Mapping[str, str]) -> Properties:
    values = {key: _with_variables(key, value, environment) for key, value in properties.values.items()}
    values |= _variables_set(values, environment)
    return Properties(properties.name, values)


def _with_variables(key: str, value: str, environment: Mapping[str, str]) -> str:
    """Replace each `$$NAME$$` by the environment variable."""

    def named(match: re.Match[str]) -> str:
        if match[1] not in environment:
            raise InvalidProperties(f"{key} asks for the environment variable {match[1]}, which is not set")
        return environment[match[1]]

    return _VARIABLE.sub(named, value)


def _variables_set(values: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, str]:
    """Return the keys that environment variables set, such as TS_DEFAULT_WORKERS_PER_MODEL for default_workers_per_model.
    The result is empty unless the file allows it (enable_envvars_config)."""
    if not _is_true(values.get("enable_envvars_config", "")):
        return {}
    found = {}
    for key in KNOWN:
        variables = ("TS_" + key.removeprefix("ts_").upper(), _OTHER_VARIABLES.get(key, ""))
        if key in _NOT_BY_VARIABLE or (key == "allowed_urls" and not _is_true(values.get("use_env_allowed_urls", ""))):
            continue
        for variable in variables:
            if variable in environment:
                found[key] = environment[variable]
    return found


# -- the values ------------------------------------------------------------------------------------------------------
class _Reader:
    """Reads one key after the other, and collects warnings in `notes`."""

    def __init__(self, properties: Properties) -> None:
        self._name = properties.name
        self._values = properties.values
        self.notes: list[str] = []

    def text(self, key: str, default: str = "") -> str:
        return self._values.get(key, default).strip()

    def value(self, key: str) -> str:
        """Return a number or a switch, without a comment after it. Java reads the comment as a part of the value."""
        value, _, comment = self.text(key).partition(" #")
        if comment:
            self.notes.append(f"{key}: the text after '#' is not part of the value {value.strip()}")
        return value.strip()

    def boolean(self, key: str, default: bool) -> bool:
        text = self.value(key).lower()
        if text in ("", "true", "false"):
            return default if not text else text == "true"
        self.notes.append(f"{key}: expected true or false, got '{text}', which counts as false")
        return False

    def integer(self, key: str, default: int, least: int = 0, most: int = MOST) -> int:
        text = self.value(key)
        if not text:
            return default
        if not _INTEGER.fullmatch(text) or not least <= int(text) <= most:
            raise self._wrong(key, f"a whole number from {least} to {most}", text)
        return int(text)

    def number(self, key: str, default: float) -> float:
        text = self.text(key)
        try:
            value = float(text) if text else default
        except ValueError:
            value = -1.0
        if not 0 < value < 1e9:
            raise self._wrong(key, "a number above 0", text)
        return value

    def path(self, key: str) -> Path | None:
        text = self.text(key)
        return Path(text) if text else None

    def port(self, key: str, default: int) -> int:
        value = self.integer(key, default)
        if value > 65535:
            raise self._wrong(key, "a port from 0 to 65535", str(value))
        return value

    def choice(self, key: str, choices: tuple[str, ...]) -> str:
        text = "".join(self.text(key, choices[0]).split()).lower()
        if text in choices:
            return text
        self.notes.append(f"{key}: expected {' or '.join(choices)}, got '{text}', which counts as {choices[0]}")
        return choices[0]

    def pattern(self, key: str) -> str:
        text = self.text(key)
        try:
            re.compile(text)
        except re.error as error:
            raise self._wrong(key, f"a regular expression ({error})", text) from None
        return text

    def patterns(self, key: str, default: tuple[str, ...]) -> tuple[str, ...]:
        texts = tuple(filter(None, (one.strip() for one in self.text(key).split(","))))
        for text in texts:
            try:
                re.compile(text)
            except re.error as error:
                raise self._wrong(key, f"regular expressions with commas between ({error})", text) from None
        return texts or default

    def address(self, key: str, ports: tuple[int, int]) -> ListenAddress:
        """Return an address. ports: the default ports of http and https."""
        text = self.text(key)
        if not text:
            return ListenAddress(port=_DEFAULT_PORTS[key])
        match = _ADDRESS.fullmatch(text)
        if match is None or int(match[3] or 0) > 65535:
            raise self._wrong(key, "http://<host>:<port>, https://<host>:<port> or unix:<path>", text)
        if match[4]:
            return ListenAddress(host="", socket=Path(match[4]))
        tls = match[1].lower() == "https"
        port = int(match[3]) if match[3] else ports[tls]
        return ListenAddress(match[2].strip("[]"), port, tls)

    def host(self, key: str) -> str:
        """Return the host of a gRPC service; its port is in another key."""
        text = self.text(key) or "127.0.0.1"
        if not _HOST.fullmatch(text):
            raise self._wrong(key, "a host name or an IP address alone", text)
        return text.strip("[]")

    def header(self, key: str) -> str:
        """Return the value of an HTTP header that is added to answers."""
        text = self.text(key)
        if text and not (text.isascii() and text.isprintable()):
            raise self._wrong(key, "printable ASCII, as a header has it", ascii(text))
        return text

    def json(self, key: str, default: object = None) -> object:
        text = self.text(key)
        if not text:
            return default
        try:
            return json.loads(text)
        except ValueError as error:
            hint = "; where it has several lines, each but the last ends with '\\'" if text in ("{", "[") else ""
            raise InvalidProperties(f"{self._name}: {key} is not JSON: {error}{hint}") from None

    def _wrong(self, key: str, expected: str, got: str) -> InvalidProperties:
        return InvalidProperties(f"{self._name}: {key}: expected {expected}, got '{got[:200]}'")


_DEFAULT_PORTS = {"inference_address": 8080, "management_address": 8081, "metrics_address": 8082}
_DEFAULT_URLS = TorchServeOptions().allowed_urls

# Key -> field of TorchServeOptions, if its name differs from the key, and the function that reads the value.
_Read = Callable[[_Reader, str], Any]


def _bool(default: bool) -> _Read:
    return lambda reader, key: reader.boolean(key, default)


def _int(default: int, least: int = 0, most: int = MOST) -> _Read:
    return lambda reader, key: reader.integer(key, default, least, most)


def _text(default: str = "") -> _Read:
    return lambda reader, key: reader.text(key) or default


HONOURED: dict[str, tuple[str, _Read]] = {
    "inference_address": ("inference_address", lambda reader, key: reader.address(key, (80, 443))),
    "management_address": ("management_address", lambda reader, key: reader.address(key, (8081, 8444))),
    "metrics_address": ("metrics_address", lambda reader, key: reader.address(key, (8082, 8445))),
    "grpc_inference_address": ("grpc_inference_address", lambda reader, key: reader.host(key)),
    "grpc_management_address": ("grpc_management_address", lambda reader, key: reader.host(key)),
    "grpc_inference_port": ("grpc_inference_port", lambda reader, key: reader.port(key, 7070)),
    "grpc_management_port": ("grpc_management_port", lambda reader, key: reader.port(key, 7071)),
    **{
        key: (key, _int(0))
        for key in (
            "grpc_inference_max_connection_age_ms",
            "grpc_inference_max_connection_age_grace_ms",
            "grpc_management_max_connection_age_ms",
            "grpc_management_max_connection_age_grace_ms",
        )
    },
    "enable_grpc_ssl": ("enable_grpc_ssl", _bool(False)),
    "certificate_file": ("certificate_file", lambda reader, key: reader.path(key)),
    "private_key_file": ("private_key_file", lambda reader, key: reader.path(key)),
    "ts_open_inference_protocol": ("open_inference_protocol", _bool(True)),
    "cors_allowed_origin": ("cors_allowed_origin", lambda reader, key: reader.header(key)),
    "cors_allowed_methods": ("cors_allowed_methods", lambda reader, key: reader.header(key)),
    "cors_allowed_headers": ("cors_allowed_headers", lambda reader, key: reader.header(key)),
    "max_request_size": ("max_request_size", _int(6553500, 1, 1 << 40)),
    "max_response_size": ("max_response_size", _int(6553500, 1, 1 << 40)),
    "model_store": ("model_store", lambda reader, key: reader.path(key)),
    "workflow_store": ("workflow_store", lambda reader, key: reader.path(key)),
    "allowed_urls": ("allowed_urls", lambda reader, key: reader.patterns(key, _DEFAULT_URLS)),
    "default_workers_per_model": ("default_workers_per_model", _int(0, 0, MAX_WORKERS)),
    "default_response_timeout": ("default_response_timeout_s", _int(120, 1, MOST_SECONDS)),
    "default_startup_timeout": ("default_startup_timeout_s", _int(120, 1, MOST_SECONDS)),
    "unregister_model_timeout": ("unregister_model_timeout_s", _int(120, 1, MOST_SECONDS)),
    "job_queue_size": ("job_queue_size", _int(100, 1)),
    "batch_size": ("batch_size", _int(1, 1)),
    "max_batch_delay": ("max_batch_delay_ms", _int(100)),
    "number_of_gpu": (
        "number_of_gpu",
        lambda reader, key: reader.integer(key, 0) if reader.text(key) else None,
    ),
    "install_py_dep_per_model": ("install_py_dep_per_model", _bool(False)),
    "default_service_handler": ("default_service_handler", _text()),
    "service_envelope": ("service_envelope", _text()),
    "decode_input_request": ("decode_input_request", _bool(True)),
    "limit_max_image_pixels": ("limit_max_image_pixels", _bool(True)),
    "blacklist_env_vars": ("blacklist_env_vars", lambda reader, key: reader.pattern(key)),
    "ts_header_key_sequence_id": ("header_key_sequence_id", _text("ts_request_sequence_id")),
    "ts_header_key_sequence_start": ("header_key_sequence_start", _text("ts_request_sequence_start")),
    "ts_header_key_sequence_end": ("header_key_sequence_end", _text("ts_request_sequence_end")),
    "enable_model_api": ("enable_model_api", _bool(False)),
    "token_expiration_min": ("token_expiration_min", lambda reader, key: reader.number(key, 60.0)),
    "enable_metrics_api": ("enable_metrics_api", _bool(True)),
    "metrics_mode": ("metrics_mode", lambda reader, key: reader.choice(key, ("log", "prometheus", "legacy"))),
    "metrics_config": ("metrics_config", lambda reader, key: reader.path(key)),
    "model_metrics_auto_detect": ("model_metrics_auto_detect", _bool(False)),
    "disable_system_metrics": ("disable_system_metrics", _bool(False)),
    "metric_time_interval": ("metric_time_interval_s", _int(60, 1)),
}
# Keys that functions below read.
_SPECIAL = (
    "load_models",
    "models",
    "model_snapshot",
    "disable_token_authorization",
    "enable_envvars_config",
    "use_env_allowed_urls",
)
_NOT_BY_VARIABLE = frozenset(("models", "model_snapshot", "enable_envvars_config", "use_env_allowed_urls"))
_KEYS_OF_FLAGS = {"token_auth": "disable_token_authorization"}  # all other flags have the names of their keys
_OTHER_VARIABLES = {"token_expiration_min": "TS_TOKEN_EXPIRATION_TIME_MIN"}  # the name that TorchServe reads
KNOWN = (*HONOURED, *_SPECIAL, *KEYSTORE, *WITHOUT_MEANING)


def torchserve_options(
    properties: Properties, environment: Mapping[str, str], **given: Any
) -> tuple[TorchServeOptions, list[str]]:
    """Return the options, and a sentence for each ignored key. given: the fields that flags set. Flags override the file, and
    the environment variables of `enable_envvars_config` override flags, as TorchServe's documentation says.

    Raises InvalidProperties if a value cannot be used.
    """
    reader = _Reader(properties)
    fields: dict[str, Any] = {name: read_one(reader, key) for key, (name, read_one) in HONOURED.items()}
    fields["token_auth"] = not reader.boolean("disable_token_authorization", False)
    fields["models"] = _models(reader)
    fields["load_models"] = load_models([reader.text("load_models")])
    fields["log_location"] = Path(environment.get("LOG_LOCATION") or "logs")
    fields["metrics_location"] = Path(environment.get("METRICS_LOCATION") or "logs")
    if protocol := environment.get("TS_OPEN_INFERENCE_PROTOCOL"):
        fields["open_inference_protocol"] = protocol == "oip"
    fields["log_files"] = bool(given.get("managed")) or "LOG_LOCATION" in environment
    fields |= _snapshot(reader)
    fields["properties"] = {key: value for key, value in properties.values.items() if key not in _SECRET}
    by_variable = _variables_set(properties.values, environment)
    fields |= {
        name: value
        for name, value in given.items()
        if value is not None and _KEYS_OF_FLAGS.get(name, name) not in by_variable
    }
    if fields["workflow_store"] is None:
        fields["workflow_store"] = fields["model_store"]
    fields["properties"] |= _as_properties(fields)
    options = TorchServeOptions(**fields)
    _check_tls(options, properties)
    return options, [*passed_over(properties), *(f"{properties.name}: {note}" for note in reader.notes)]


def _as_properties(fields: Mapping[str, Any]) -> dict[str, str]:
    """Return the fields that flags may set, in the form of a snapshot."""
    said = {key: str(fields[key]) for key in ("model_store", "workflow_store") if fields[key] is not None}
    if fields["load_models"]:
        said["load_models"] = ",".join(fields["load_models"])
    if fields["enable_model_api"]:
        said["enable_model_api"] = "true"
    if not fields["token_auth"]:
        said["disable_token_authorization"] = "true"
    return said


def load_models(texts: Iterable[str]) -> tuple[str, ...]:
    """Return the models to load at the start: ("all",), or each [name=]archive; () for `standalone`."""
    named = tuple(filter(None, (text.strip() for texts_of_one in texts for text in texts_of_one.split(","))))
    if len(named) == 1 and named[0].lower() in ("all", "standalone", "n/a", "none"):
        return ("all",) if named[0].lower() == "all" else ()
    return tuple("=".join(part.strip() for part in one.split("=", 1)) for one in named)


def _models(reader: _Reader) -> ModelsSettings:
    return checked_models(reader.json("models", {}), "models")


def checked_models(value: object, key: str) -> ModelsSettings:
    """Return the value itself if it is {model: {version: settings}}. Raises InvalidProperties if it has another form."""
    if isinstance(value, dict) and all(
        isinstance(versions, dict) and all(isinstance(one, dict) for one in versions.values())
        for versions in value.values()
    ):
        return value
    raise InvalidProperties(f'{key}: expected {{"<model>": {{"<version>": {{<settings>}}}}}}')


def _snapshot(reader: _Reader) -> dict[str, Any]:
    """Return the models and workflows of a snapshot; the models are None if the file is no snapshot."""
    value = reader.json("model_snapshot")
    if value is None:
        return {"model_snapshot": None}
    said = value if isinstance(value, dict) else {}
    workflows = said.get("workflows", {})
    if not isinstance(workflows, dict) or not all(isinstance(one, dict) for one in workflows.values()):
        raise InvalidProperties("model_snapshot: expected the workflows as an object of objects")
    return {
        "model_snapshot": checked_models(said.get("models"), "model_snapshot"),
        "snapshot_workflows": tuple((name, str(one.get("warName", ""))) for name, one in workflows.items()),
    }


def _check_tls(options: TorchServeOptions, properties: Properties) -> None:
    addresses = (options.inference_address, options.management_address, options.metrics_address)
    if not options.enable_grpc_ssl and not any(one.tls for one in addresses):
        return
    if options.certificate_file is not None and options.private_key_file is not None:
        return
    if "keystore" in properties.values:
        raise InvalidProperties(
            f"{properties.name}: a Java keystore cannot be read here; make PEM files of it and name them by private_key_file "
            "and certificate_file: openssl pkcs12 -in keystore.p12 -nodes -nocerts -out key.pem; openssl pkcs12 -in "
            "keystore.p12 -nokeys -out certificate.pem (for a JKS one first keytool -importkeystore -deststoretype PKCS12)"
        )
    raise InvalidProperties(
        f"{properties.name}: https, and enable_grpc_ssl, need private_key_file and certificate_file in PEM (openssl req -x509 "
        "-nodes -days 365 -newkey rsa:2048 -keyout mykey.key -out mycert.pem makes a pair for a trial)"
    )


def passed_over(properties: Properties) -> list[str]:
    """Return a sentence for each key that has no meaning on this server, and for each unknown key."""
    notes = []
    tls = "private_key_file" in properties.values
    for key in properties.values:
        if reason := WITHOUT_MEANING.get(key):
            notes.append(f"{properties.name}: {key} has no meaning on this server: {reason}")
        elif key in KEYSTORE and not tls and key == "keystore":
            notes.append(f"{properties.name}: {key} is passed over: nothing is served over TLS")
        elif key in KEYSTORE and tls and key == "keystore":
            notes.append(f"{properties.name}: {key} is passed over for private_key_file and certificate_file")
        elif key not in KNOWN:
            near = difflib.get_close_matches(key, KNOWN, 1)
            hint = f"; is {near[0]} meant?" if near else ""
            notes.append(f"{properties.name}: there is no property {key[:80]!a}{hint}")
    return notes


def _is_true(text: str) -> bool:
    return text.strip().lower() == "true"
