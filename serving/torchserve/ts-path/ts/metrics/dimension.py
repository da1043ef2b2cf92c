"""A dimension of a metric: a name and a value."""


class Dimension:
    def __init__(self, name: str, value: object) -> None:
        self.name = name
        self.value = value

    def __str__(self) -> str:
        return f"{self.name}:{self.value}"

    def to_dict(self) -> dict[str, object]:
        return {"Name": self.name, "Value": self.value}
