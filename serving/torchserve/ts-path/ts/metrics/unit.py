"""Units of metrics: short name -> name."""


class Units:
    def __init__(self) -> None:
        self.units: dict[str | None, str] = {
            "ms": "Milliseconds",
            "s": "Seconds",
            "percent": "Percent",
            "count": "Count",
            "MB": "Megabytes",
            "GB": "Gigabytes",
            "kB": "Kilobytes",
            "B": "Bytes",
            "": "unit",
            None: "unit",
        }
