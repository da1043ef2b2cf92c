"""The models and pages of dashboards with very many rows, in tests and in benchmarks."""


def model_name(number: int) -> str:
    return f"model_{number:03}"


def model_pages(name: str) -> tuple[str, ...]:
    """Return the addresses of every page of a model that has two versions and six releases, or more."""
    tabs = ("", "versions", "versions/1/live", "releases/", "releases/2/", "compare?a=v1&b=v2", "compare?a=r3&b=r6")
    return tuple(f"/models/{name}/{tab}" for tab in (*tabs, "configuration", "playground", "activity", "log"))
