"""The ASGI application: pages and REST over HTTP, live data over WebSockets. Import it after the settings."""

from channels.routing import ProtocolTypeRouter
from django.core.asgi import get_asgi_application

pages = get_asgi_application()  # This sets up Django, so it precedes the imports of modules that use models.

from dashboard.admission import admit_bodies  # noqa: E402
from dashboard.routing import websockets  # noqa: E402
from dashboard.shared.client_gone import watch_clients  # noqa: E402
from dashboard.web.health import answer_health  # noqa: E402

admit_bodies()

application = ProtocolTypeRouter({"http": answer_health(watch_clients(pages)), "websocket": websockets})
