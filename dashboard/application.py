"""What the web process is made of: pages and REST over HTTP, live data over WebSockets. The settings are read already."""

from channels.routing import ProtocolTypeRouter
from django.core.asgi import get_asgi_application

pages = get_asgi_application()  # before anything that touches models

from dashboard.admission import admit_bodies  # noqa: E402
from dashboard.routing import websockets  # noqa: E402
from dashboard.shared.client_gone import noticing_clients_that_go  # noqa: E402

admit_bodies()

application = ProtocolTypeRouter({"http": noticing_clients_that_go(pages), "websocket": websockets})
