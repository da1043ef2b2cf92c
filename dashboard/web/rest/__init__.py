"""The parts that every REST endpoint shares: base class, pages of a list, body parsers, permissions, errors as JSON, the
schema. The room imports `access` and the rooms below. The `rest` module of each room builds on it, and the settings name its
classes."""
