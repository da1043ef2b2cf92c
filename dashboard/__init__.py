"""The dashboard: a Django project of one app. The modules of this package configure and combine its rooms, the subpackages. A
room may import itself and the rooms below it, in the order of `tests/test_architecture.py`. The modules may import every room
except `management`. Daphne, Celery and `manage.py` start here."""
