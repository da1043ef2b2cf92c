"""Lets the connections of this process execute every statement through a wrapper."""

from collections.abc import Callable
from typing import Any

from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created


def wrap_statements(wrapper: Callable[..., Any]) -> None:
    """Wrap the statements of every connection that opens from now on. A second call with the same wrapper does nothing."""

    def install(connection: BaseDatabaseWrapper, **_: object) -> None:
        if wrapper not in connection.execute_wrappers:
            connection.execute_wrappers.append(wrapper)

    connection_created.connect(install, weak=False, dispatch_uid=wrapper)
