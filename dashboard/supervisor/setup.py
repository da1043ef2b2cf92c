"""Prepares a data folder before the processes start: database, administrator, examples. A second run changes nothing."""

import os
from contextlib import suppress
from dataclasses import dataclass

from django.conf import settings
from django.core.management import call_command
from django.db import DatabaseError, connection
from django.db.migrations.executor import MigrationExecutor
from django.utils import timezone

from dashboard.access.authorisation import SYSTEM
from dashboard.accounts.accounts import administrator_ensure
from dashboard.accounts.tokens import auth_file_write
from dashboard.fleet.selectors import environment_get
from dashboard.fleet.services import environment_update
from dashboard.models import Model, Server, ServerState
from dashboard.models.environment import PRODUCTION
from dashboard.releases.restoration import bucket_compare
from dashboard.servers.server_state import MACHINE, UP, server_info_record, server_restart_take, wanted_models_write
from dashboard.servers.services import LOCAL, server_ensure_local
from dashboard.shared import heartbeat
from dashboard.shared.choices import DesiredState, ServerStatus
from dashboard.shared.exceptions import Conflict, DashboardError, Unavailable
from dashboard.shared.machine import machine_identity
from dashboard.shared.sealing import unseal
from dashboard.shared.space import enable_incremental_vacuum
from dashboard.supervisor.installation import check_installation, in_one_folder, own_server_name
from dashboard.uploads.examples import examples_publish
from repository.files.storage import locked

PATIENCE_S = 600.0  # the first machine of a slow installation migrates and publishes for minutes


@dataclass(frozen=True, slots=True)
class Prepared:
    """The result of the preparation.

    password: the password of the new administrator, to be shown once; "" if SLIPWAY_ADMIN_PASSWORD set it.
    """

    server: Server | None  # the bundled server, None if no machine runs one
    migrated: bool
    administrator: str
    password: str
    examples: list[str]
    problem: str  # the reason why examples are missing
    restored: list[str]  # models that were made of the bucket
    unrestored: str  # the reason why the bucket was not compared


def prepare(*, runs_server: bool = True) -> Prepared:
    """Prepare the data folder and the database. runs_server: whether this machine runs the bundled server.

    Raises Invalid if this machine's keys or shared folder are not those of the installation.
    Raises Conflict if the bucket is another installation's, and a RepositoryError if another machine has been preparing for
    PATIENCE_S.
    """
    # Several machines may start at once, and one of them fills the empty database.
    with locked(settings.SHARED_DIR / "prepare.lock", "the installation", wait_s=PATIENCE_S):
        return _prepare(runs_server)


def _prepare(runs_server: bool) -> Prepared:
    with suppress(
        DatabaseError
    ):  # a new database has no table for it; nothing is changed for a machine that is refused
        check_installation()
    with suppress(DatabaseError):  # the file cannot shrink yet; the next start tries again
        enable_incremental_vacuum()
    migrated = migrate()
    check_installation()
    restored, unrestored = _restored()  # it may refuse to start, so it comes before the first password
    server = _server() if runs_server else Server.objects.filter(name=LOCAL).first()
    find_production()
    administrator, password = administrator_ensure() or ("", "")
    auth_file_write()
    examples, problem = _examples()
    loaded = Model.objects.filter(desired_state=DesiredState.LOADED)
    wanted_models_write(sorted(loaded.values_list("name", flat=True)))
    if runs_server and server is not None and not in_one_folder():
        _claim(server)  # last, because the examples may have taken minutes
    return Prepared(server, migrated, administrator, password, examples, problem, restored, unrestored)


def _restored() -> tuple[list[str], str]:
    """Compare the bucket with the database. While it does not answer, the folder serves as it is, and `up` starts."""
    try:
        return bucket_compare(), ""
    except Unavailable as error:
        return [], error.message


def _server() -> Server:
    server = server_ensure_local(name=own_server_name())
    server_info_record(server=server, key=MACHINE, value=machine_identity())
    server_info_record(server=server, key=UP, value=[heartbeat.HOST, os.getpid(), heartbeat.STARTED_S])
    server_restart_take(server=server)  # this start fulfils a request of an earlier run
    return server


def find_production() -> None:
    """Let production be the pods of SLIPWAY_KUBERNETES_SERVICE, with this installation's control key. A person who changes that
    in between has it until the next start. Raises Invalid for a name that is none, or if production has listed servers."""
    if not settings.KUBERNETES_SERVICE:
        return
    production = environment_get(PRODUCTION)
    service, key = settings.KUBERNETES_SERVICE, settings.SERVER_CONTROL_KEY
    with suppress(Conflict):  # the key that stands was sealed with an earlier SLIPWAY_SECRET_KEY
        if (production.kubernetes_service, unseal(production.control_key)) == (service, key):
            return
    environment_update(environment=production, actor=SYSTEM, kubernetes_service=service, control_key=key)


def _claim(server: Server) -> None:
    """Say that this machine's server starts now, so that the next machine that prepares does not take its name over."""
    ServerState.objects.filter(server=server).update(state=ServerStatus.STARTING, checked_at=timezone.now())


def _examples() -> tuple[list[str], str]:
    """Publish the examples. Return their names, and the error if one failed. The command `up` starts in any case."""
    try:
        return examples_publish(), ""
    except DashboardError as error:
        return [], error.message


def migrate() -> bool:
    """Apply the migrations, and return whether there were any."""
    executor = MigrationExecutor(connection)
    if not executor.migration_plan(executor.loader.graph.leaf_nodes()):
        return False
    call_command("migrate", interactive=False, verbosity=0)
    return True
