"""A stand-in for the API of a cluster: it answers as API server, scheduler and controller-manager of Kubernetes 1.20 did.

What the two nodes told was made up: one image cannot be fetched, and one container is killed for its memory.
"""

import json
import re
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from django.utils import timezone

from tests.dashboard.uploads.file_server import FileServer, WebFile
from tests.support.certificates import Authority

NAMESPACE = "/namespaces/prod"
PATHS = {
    "pods": f"/api/v1{NAMESPACE}/pods",
    "events": f"/api/v1{NAMESPACE}/events",
    "service": f"/api/v1{NAMESPACE}/services/triton",
    "deployment": f"/apis/apps/v1{NAMESPACE}/deployments/triton",
    "scale": f"/apis/apps/v1{NAMESPACE}/deployments/triton/scale",
    "hpas": f"/apis/autoscaling/v1{NAMESPACE}/horizontalpodautoscalers",
}
NONE: dict[str, Any] = {"items": []}
_TIME = re.compile(r"2026-\d\d-\d\dT\d\d:\d\d:\d\d(?=(\.\d+)?Z)")


def recorded(ago: timedelta = timedelta(days=1)) -> dict[str, Any]:
    """The recorded answers, the newest from so long ago."""
    text = (Path(__file__).parent / "kubernetes_1_20.json").read_text()
    later = (
        timezone.now().replace(tzinfo=None) - ago - datetime.fromisoformat(max(one[0] for one in _TIME.finditer(text)))
    )
    moved = _TIME.sub(lambda at: (datetime.fromisoformat(at[0]) + later).isoformat(timespec="seconds"), text)
    found: dict[str, Any] = json.loads(moved)
    return found


def answers(cluster: FileServer, **objects: Any) -> None:
    """Let the cluster have these objects, by their names in PATHS."""
    for name, value in objects.items():
        cluster.files[PATHS[name]] = WebFile(json.dumps(value).encode())


def settings_for(cluster: FileServer, authority: Authority, **more: Any) -> dict[str, Any]:
    """The settings of an environment whose servers are the pods of the cluster."""
    return {
        "name": "eu",
        "driven": False,
        "kubernetes_selector": "prod/app=triton",
        "kubernetes_address": cluster.url,
        "kubernetes_token": "of the account",
        "kubernetes_ca_file": str(authority.cert),
        "replicas_max": 9,
        **more,
    }
