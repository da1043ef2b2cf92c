"""The dashboard: a Django project of one app, put together here from its rooms: settings, addresses, WebSocket routes, the
admission of bodies, and the Celery application. A room may import itself and the rooms below it, in the order that
`tests/test_architecture.py` gives; this one may import all but `management`. Daphne, Celery and `manage.py` start here."""
