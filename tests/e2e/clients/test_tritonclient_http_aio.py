"""The stock asyncio HTTP client."""

from tests.e2e.clients.tritonclient_suite import TritonclientSuite


class TestTritonclientHttpAio(TritonclientSuite):
    kind = "http_aio"
