"""Compression of answers for clients that accept gzip."""

import re

from django.http import HttpRequest, HttpResponseBase
from django.middleware.gzip import GZipMiddleware
from django.utils.cache import patch_vary_headers

# Content types that become smaller by compression.
TEXT = ("text/", "application/json", "application/yaml", "application/javascript", "image/svg+xml")
_GZIP = re.compile(r"\bgzip\b(?!\s*;\s*q=0(?:\.0*)?\s*(?:,|$))")


def takes_gzip(request: HttpRequest) -> bool:
    """Return whether the client accepts gzip (RFC 9110, 12.5.3); a quality of 0 is a refusal."""
    return _GZIP.search(request.headers.get("Accept-Encoding", "")) is not None


class CompressText(GZipMiddleware):
    """Compress pages and JSON, but neither compressed nor streaming answers.

    An attacker who watches sizes learns no secret of a page (BREACH). Django masks the CSRF token differently in each page, and
    this middleware gives each answer a random length.
    """

    def process_response(self, request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
        text = response.get("Content-Type", "").startswith(TEXT)
        if response.streaming or not text or response.has_header("Content-Encoding"):
            return response
        patch_vary_headers(response, ["Accept-Encoding"])
        return super().process_response(request, response) if takes_gzip(request) else response
