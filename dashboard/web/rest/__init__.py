"""What every REST endpoint shares: its base class, pages of a list, body parsers, permissions, errors as JSON, the schema.
It imports `access` and what is below. The `rest` module of each room builds on it, and the settings name its classes."""
