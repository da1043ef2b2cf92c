"""Formats numbers, shares and times for sentences and pages: a unit, and at most three significant digits."""

import math

_PREFIXES = (("", 1.0), ("k", 1e3), ("M", 1e6), ("G", 1e9), ("T", 1e12))


def three_digits(value: float) -> str:
    """Return `value` with at most three significant digits, never in exponent form."""
    if value == 0:
        return "0"
    magnitude = abs(value)
    decimals = 0 if magnitude >= 100 else 1 if magnitude >= 10 else 2 if magnitude >= 1 else 3
    text = f"{value:.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def scaled(value: float) -> tuple[str, str]:
    """Return the digits of a number, and the prefix of their unit."""
    prefix, factor = next((pair for pair in reversed(_PREFIXES) if abs(value) >= 0.9995 * pair[1]), _PREFIXES[0])
    return three_digits(value / factor), prefix


def count(value: float) -> str:
    """Return 1234567 as `1.23 M`."""
    digits, prefix = scaled(value)
    return f"{digits} {prefix}".rstrip()


def number(value: float) -> str:
    """Return a number of any size: 0.00012 as `1.2e-4`."""
    if value and math.isfinite(value) and (abs(value) < 0.001 or abs(value) >= 1e9):
        digits, power = f"{value:.2e}".split("e")
        return f"{three_digits(float(digits))}e{int(power)}"
    return count(value)


def latency(milliseconds: float) -> str:
    """Return a duration as `124 µs`, `1.24 ms` or `12.4 s`."""
    if milliseconds == 0:
        return "0 ms"
    if milliseconds < 0.9995:
        return f"{three_digits(milliseconds * 1e3)} µs"
    if milliseconds < 999.5:
        return f"{three_digits(milliseconds)} ms"
    return f"{three_digits(milliseconds / 1e3)} s"


def share(value: float) -> str:
    """Return a share from 0 to 1 as a percentage."""
    if 0 < value < 0.0001:
        return "< 0.01 %"
    if 0.9995 <= value < 1:
        return "> 99.9 %"
    return f"{three_digits(value * 100)} %"


def duration(seconds: float) -> str:
    """Return a duration as `250 ms`, `42 s`, `3 min 20 s`, `2 h 5 min`, `4 d 3 h`."""
    if seconds < 1:
        return latency(max(seconds, 0) * 1000)
    if seconds < 10:
        return f"{three_digits(seconds)} s"
    seconds = round(seconds)
    for name, length, small, part in (("d", 86400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)):
        if seconds >= length:
            rest = seconds % length // part
            return f"{seconds // length} {name} {rest} {small}" if rest else f"{seconds // length} {name}"
    return f"{seconds} s"
