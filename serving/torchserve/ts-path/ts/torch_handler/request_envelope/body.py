"""The envelope `body`: the handler gets only the bodies of requests."""

from typing import Any

from .base import BaseEnvelope, body_of


class BodyEnvelope(BaseEnvelope):
    def parse_input(self, data: list[Any]) -> list[Any]:
        return [body_of(row) for row in data]

    def format_output(self, data: list[Any]) -> list[Any]:
        return data


ENVELOPE = BodyEnvelope
