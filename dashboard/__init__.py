"""The dashboard: a Django project of one app. This package combines its rooms: settings, addresses, WebSocket routes, the
admission of bodies, and the Celery application. A room may import itself and the rooms below it, in the order of
`tests/test_architecture.py`; this one may import all except `management`. Daphne, Celery and `manage.py` start here."""
