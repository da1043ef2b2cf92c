"""A writer of the bucket whose session PostgreSQL ends: its late pointer replaces no later one, and nobody waited for it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from django.conf import settings

from tests.dashboard.web_process import migrated_database
from tests.support import engines
from tests.support.object_store import BUCKET, ObjectStore
from tests.support.serving_process import START_TIMEOUT_S

SCRIPT = """
import os
from concurrent.futures import ThreadPoolExecutor
from django.conf import settings
from django.db import connection, connections
from dashboard.access.authorisation import SYSTEM
from dashboard.catalog.services import model_describe
from dashboard.configuration.drift import model_adopt
from dashboard.configuration.services import config_apply
from dashboard.models import Model
from dashboard.releases import bucket as buckets
from dashboard.releases.bucket import bucket_reconcile, managed_bucket
from dashboard.releases.restoration import bucket_compare
from dashboard.releases.storage import managed_repository
from dashboard.shared.exceptions import Conflict
from repository.config.document import Document
from tests.dashboard.conftest import CONFIG, relu_bytes
from tests.support.faulty_store import FaultyStore
from tests.support.serving_process import PATIENCE_S

SESSIONS = "FROM pg_stat_activity WHERE state = 'idle in transaction' AND datname = current_database()"
buckets.LEASE_S = 2 * PATIENCE_S
buckets.WRITE_S = PATIENCE_S / 2

def adopted(name):
    folder = managed_repository().model_dir(name)
    (folder / "1").mkdir(parents=True)
    (folder / "1" / "model.onnx").write_bytes(relu_bytes())
    (folder / "config.pbtxt").write_text(CONFIG)
    return model_adopt(name=name, actor=SYSTEM)

def change(size):
    document = Document.read(CONFIG.replace("max_batch_size: 8", f"max_batch_size: {size}"))
    try:
        config_apply(model=Model.objects.get(name="relu"), actor=SYSTEM, document=document)
    except Exception as error:
        return error
    finally:
        connections.close_all()

def in_bucket():
    release = managed_bucket().pointer("relu").document["record"]["release"]
    return release["number"], next(line for line in release["text"].splitlines() if "max_batch_size" in line)

with FaultyStore(os.environ["STORE"]) as proxy, ThreadPoolExecutor(1) as pool:
    proxy.no_conditions = True
    settings.REPOSITORY_BUCKET = f"s3://127.0.0.1:{proxy.port}/" + os.environ["PLACE"]
    assert bucket_compare() == []
    adopted("relu")
    other = adopted("other")
    assert in_bucket()[0] == 1
    proxy.held_back = "/models/relu.json"
    late = pool.submit(change, 2)
    assert proxy.holds.wait(PATIENCE_S)
    model_describe(model=other, actor=SYSTEM, description="nobody else waits")
    assert not late.done()
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT pg_terminate_backend(pid) {SESSIONS}")
    refused = change(4)
    assert isinstance(refused, Conflict) and "may still be changing 'relu'" in str(refused), refused
    proxy.let_through.set()
    assert late.result(PATIENCE_S) is not None, "its session has ended"
    assert Model.objects.get(name="relu").releases.count() == 1
    for marks in buckets._marks().values():
        for mark in marks:
            os.utime(mark, (0, 0))
    assert change(4) is None
    assert in_bucket() == (2, "max_batch_size: 4"), in_bucket()
    assert "relu" in bucket_reconcile()
    assert in_bucket() == (2, "max_batch_size: 4") and not buckets._marks()
print("all is well")
"""


@pytest.mark.skipif(bool(engines.MISSING), reason=f"needs Debian's packages {', '.join(engines.MISSING)}")
def test_a_writer_without_its_session_replaces_no_later_pointer(postgres: engines.Engine, tmp_path: Path) -> None:
    with ObjectStore() as store:
        environment = {
            **os.environ,
            **store.credentials,
            "SLIPWAY_DATA": str(tmp_path / "data"),
            "DJANGO_SETTINGS_MODULE": "dashboard.settings",
            "DATABASE_URL": migrated_database(postgres.port, "late_writer"),
            "STORE": store.endpoint,
            "PLACE": f"{BUCKET}/prefix",
        }
        where = {"cwd": settings.BASE_DIR, "env": environment}
        shell = [sys.executable, "manage.py", "shell", "--no-imports", "-c", SCRIPT]
        done = subprocess.run(shell, capture_output=True, text=True, timeout=START_TIMEOUT_S, check=False, **where)
    assert done.stdout.strip() == "all is well", done.stderr
