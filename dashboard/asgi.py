"""The ASGI application: pages and REST over HTTP, live data over WebSockets."""

import os

from django.core.asgi import get_asgi_application

from dashboard.shared.startup import settings_or_exit

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "dashboard.settings")
settings_or_exit()
pages = get_asgi_application()  # before anything that touches models

from channels.routing import ProtocolTypeRouter  # noqa: E402

from dashboard.admission import admit_bodies  # noqa: E402
from dashboard.routing import websockets  # noqa: E402

admit_bodies()

application = ProtocolTypeRouter({"http": pages, "websocket": websockets})
