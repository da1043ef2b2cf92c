"""The tokens with which the dashboard itself sends inference requests to the bundled server, if that requires tokens.

Requests of a person have a token of that person, which is derived from the dashboard's own. So they count for the person and
their groups, and within their quotas (accounts.tokens lists these tokens in auth.json).
"""

import hmac

from django.conf import settings

from dashboard.models import Server


def infer_key(person: str = "") -> str:
    """Return the token of a person's requests, or of the dashboard's own."""
    own: str = settings.SERVER_INFER_KEY
    return hmac.new(own.encode(), person.encode(), "sha256").hexdigest() if person else own


def bearer(server: Server, person: str = "") -> dict[str, str]:
    """Return the header with the token; {} if none is needed, or the server is another one, which gets no token."""
    return {"Authorization": f"Bearer {infer_key(person)}"} if server.bundled and settings.REQUIRE_TOKENS else {}
