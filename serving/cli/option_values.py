"""Functions that convert the text of a flag into its value.

They raise argparse.ArgumentTypeError with one sentence if the text is wrong, and argparse prints it.
"""

import argparse
import dataclasses
import math
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import re2

from repository.core.errors import RepositoryError
from repository.core.layout import check_name
from repository.remote.address import RemoteAddress, is_remote
from repository.remote.address import parse as parse_address

RESTRICTABLE = (
    "health",
    "metadata",
    "inference",
    "shared-memory",
    "model-config",
    "model-repository",
    "statistics",
    "trace",
    "logging",
)

MAX_WORKERS = 256

HostPolicySetting = tuple[str, str, str]  # policy, setting, value
Cores = frozenset[int]

_NUMBER = re.compile(r"\s*([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)", re.ASCII)
_INTEGER = re.compile(r"[+-]?[0-9]{1,18}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Restriction:
    """A value of --http-restricted-api or --grpc-restricted-protocol. Requests to `apis` must carry this header and value."""

    apis: tuple[str, ...]
    header: str
    value: str = dataclasses.field(repr=False)


@dataclass(frozen=True, slots=True)
class Cap:
    """At most `number` things, or this share in percent of all things."""

    number: int
    percent: bool

    def of(self, total: int) -> int:
        """Return how many of `total` things it allows. A share above 0 % allows at least one."""
        return max(min(1, self.number), total * self.number // 100) if self.percent else self.number

    def __str__(self) -> str:
        return f"{self.number}{'%' * self.percent}"


NONE, HALF = Cap(0, percent=False), Cap(50, percent=True)


def cap(text: str) -> Cap:
    digits = text.removesuffix("%")
    percent = digits != text
    if not _INTEGER.fullmatch(digits) or int(digits) < 0 or (percent and int(digits) > 100):
        raise argparse.ArgumentTypeError(f"expected a number of models, or a share such as 50%, got '{text}'")
    return Cap(int(digits), percent)


def boolean(text: str) -> bool:
    if text.lower() in ("true", "1", "on", "yes"):
        return True
    if text.lower() in ("false", "0", "off", "no"):
        return False
    raise argparse.ArgumentTypeError(f"expected true or false, got '{text}'")


def whole_number(text: str) -> int:
    if not text.isdigit():
        raise argparse.ArgumentTypeError(f"expected a whole number, got '{text}'")
    return int(text)


def workers(text: str) -> int:
    if not text.isdigit() or int(text) > MAX_WORKERS:
        raise argparse.ArgumentTypeError(f"expected a number of processes from 0 to {MAX_WORKERS}, got '{text}'")
    return int(text)


def gpu_limit(text: str) -> tuple[int, float]:
    device, _, fraction = text.partition(":")
    try:
        value = float(fraction)
    except ValueError:
        value = -1.0
    if not device.isdigit() or not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"expected <device>:<fraction from 0 to 1>, got '{text}'")
    return int(device), value


def config_name(text: str) -> str:
    try:
        return check_name(text)
    except RepositoryError as error:
        raise argparse.ArgumentTypeError(f"'{text}' cannot be the name of a configuration: {error.message}") from None


def repository(text: str) -> Path | RemoteAddress:
    if not is_remote(text):
        return Path(text)
    try:
        return parse_address(text)
    except RepositoryError as error:
        raise argparse.ArgumentTypeError(error.message) from None


def model_name(text: str) -> str:
    try:
        return text and check_name(text)
    except RepositoryError as error:
        raise argparse.ArgumentTypeError(f"'{text}' cannot be the name of a model: {error.message}") from None


def number(text: str) -> int:
    """Return a positive or negative whole number."""
    if not _INTEGER.fullmatch(text):
        raise argparse.ArgumentTypeError(f"expected a whole number, got '{text}'")
    return int(text)


def at_least_one(text: str) -> int:
    """Return a number; a number below 1 counts as 1, as in tritonserver."""
    return max(1, number(text))


def verbosity(text: str) -> int:
    """Return a log level; true and false mean 1 and 0, as in tritonserver."""
    return {"true": 1, "false": 0}[text.lower()] if text.lower() in ("true", "false") else number(text)


def lowered(text: str) -> str:
    """Return the text in lower case, for flags whose values may be written in either case."""
    return text.lower()


def address(text: str) -> str:
    """Return an address; an IPv6 address may be written as [::1] or ipv6:[::1], as for tritonserver."""
    host = text.removeprefix("ipv6:")
    return host[1:-1] if host.startswith("[") and host.endswith("]") else host


def host_policy(text: str) -> HostPolicySetting:
    name, _, value = text.partition("=")
    policy, _, setting = name.partition(",")
    try:
        good = bool(policy) and (bool(core_list(value)) if setting == "cpu-cores" else value.isdigit())
    except ValueError:
        good = False
    if not good or setting not in ("cpu-cores", "numa-node"):
        raise argparse.ArgumentTypeError(
            f"expected <policy>,cpu-cores=<cores, such as 0-3,8> or <policy>,numa-node=<number>, got '{text}'"
        )
    return policy, setting, value


def core_list(text: str) -> Cores:
    """Parse a list of cores in Linux's notation, "0-3,8". Raises ValueError if the text is not such a list."""
    cores: set[int] = set()
    for part in text.strip().split(","):
        first, dash, last = part.partition("-")
        cores.update(range(int(first), int(last if dash else first) + 1))
    return frozenset(cores)


def count(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, got '{text}'")
    return int(text)


def latency_buckets(text: str) -> int:
    if text not in ("0", "1", "2", "5", "10"):
        raise argparse.ArgumentTypeError(f"expected 0, 1, 2, 5 or 10, got '{text}'")
    return int(text)


def seconds(text: str) -> float:
    """Return seconds; a negative number counts as 0, as in tritonserver."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not value < 1e9:
        raise argparse.ArgumentTypeError(f"expected a number of seconds, got '{text}'")
    return max(0.0, value)


def heartbeat_timeout(text: str) -> float:
    """Return seconds. Less than 2 s is refused, because a model's process sends a heartbeat only once a second."""
    value = seconds(text)
    if value < 2:
        raise argparse.ArgumentTypeError(f"expected at least 2 seconds, got '{text}'")
    return value


def fraction(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0.01 <= value <= 1:
        raise argparse.ArgumentTypeError(f"expected a number from 0.01 to 1, got '{text}'")
    return value


def backend_setting(text: str) -> tuple[str, str, str]:
    """Return (backend, setting, value). Only default-max-batch-size may have the backend "", which means all backends."""
    name, _, value = text.partition("=")
    backend, comma, setting = name.rpartition(",")
    if not (setting and value) or (comma and not backend):
        raise argparse.ArgumentTypeError(f"expected <backend>,<setting>=<value>, got '{text}'")
    if setting == "default-max-batch-size":
        whole_number(value)
    elif not backend:
        raise argparse.ArgumentTypeError(
            f"expected <backend>,<setting>=<value> or default-max-batch-size=<n>, got '{text}'"
        )
    return backend, setting, value


def metrics_setting(text: str) -> tuple[str, str]:
    setting, _, value = text.partition("=")
    if setting in ("counter_latencies", "histogram_latencies", "summary_latencies"):
        boolean(value)
    elif setting != "summary_quantiles" or not all(map(_is_quantile, value.split(","))):
        raise argparse.ArgumentTypeError(
            "expected counter_latencies, histogram_latencies or summary_latencies=<true or false>, "
            f"or summary_quantiles=<quantile>:<error>[,...], got '{text}'"
        )
    return setting, value


def quantile(text: str) -> float:
    """Return the quantile of <quantile>:<error>; the error is not used. Raises ValueError unless both parts begin with a number
    from 0 to 1. Text after the number is ignored, as by C++'s stod in tritonserver: 0.1:0.0.1 is accepted."""
    found, *error = [_leading_number(part) for part in text.split(":", 1)]
    if not all(0 <= number <= 1 for number in (found, *error)):
        raise ValueError
    return found


def _leading_number(text: str) -> float:
    number = _NUMBER.match(text)
    if number is None:
        raise ValueError
    return float(number[1])


def _is_quantile(text: str) -> bool:
    try:
        quantile(text)
    except ValueError:
        return False
    return True


def cache_setting(text: str) -> tuple[str, str, str]:
    cache, setting, value = backend_setting(text)
    if cache != "local" or setting != "size" or not value.isdigit() or not int(value):
        raise argparse.ArgumentTypeError(f"expected local,size=<bytes>, got '{text}'")
    return cache, setting, value


def cache_size(text: str) -> tuple[str, str, str]:
    """Parse --response-cache-byte-size, tritonserver's older name of --cache-config=local,size=<bytes>."""
    return cache_setting(f"local,size={text}")


def resource(text: str) -> tuple[str, int, int | None]:
    name, _, rest = text.partition(":")
    count, colon, device = rest.partition(":")
    if not name or not count.isdigit() or (colon and not device.isdigit()):
        raise argparse.ArgumentTypeError(f"expected <name>:<count>[:<device>], got '{text}'")
    return name, int(count), int(device) if device else None


def restriction(kind: str, text: str) -> Restriction:
    """Parse Triton's form, "model-repository,logging:admin-key=secret". kind: "api" or "protocol", for the error."""
    names, colon, rest = text.partition(":")
    header, equals, value = rest.partition("=")
    apis = tuple(name.strip() for name in names.split(","))
    if not (colon and equals and header and value):
        raise argparse.ArgumentTypeError("expected <api>[,<api>]:<header>=<value>")
    for name in apis:
        if name not in RESTRICTABLE:
            raise argparse.ArgumentTypeError(
                f"unknown restricted {kind} '{name}'; expected one of {', '.join(RESTRICTABLE)}"
            )
    return Restriction(apis, header.strip().lower(), value)


def restricted_twice(restrictions: list[Restriction]) -> str:
    """Return the first api that is named more than once, or ""."""
    counted = Counter(api for restriction in restrictions for api in restriction.apis)
    return next((api for api, times in counted.items() if times > 1), "")


def pattern(text: str) -> str:
    try:
        header_pattern(text)
    except re2.error as error:
        reason = error.args[0].decode(errors="replace")
        raise argparse.ArgumentTypeError(f"expected a regular expression, got '{text}': {reason}") from None
    return text


def header_pattern(text: str) -> re2._Regexp | None:
    """Compile a pattern with RE2, as Triton does. Return None if it is empty. Searches take linear time, and ignore case unless
    the pattern has (?-i)."""
    options = re2.Options()
    options.log_errors = False
    return re2.compile(f"(?i){text}", options) if text else None
