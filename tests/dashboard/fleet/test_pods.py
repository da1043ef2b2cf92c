"""Pods with reasons, why their number changed, and setting it within bounds."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from html import unescape
from threading import Event
from typing import Any
from urllib.parse import parse_qs, urljoin, urlsplit

import pytest
from asgiref.sync import async_to_sync
from django.core.management import CommandError, call_command
from django.test import Client
from django.utils import timezone
from rest_framework.test import APIClient

from dashboard.kubernetes import api as kubernetes
from dashboard.kubernetes import services
from dashboard.kubernetes.look import look_at
from dashboard.kubernetes.pods import Pod, pod_row
from dashboard.kubernetes.selectors import last_workloads, pod_standings, readings, replicas_of
from dashboard.kubernetes.services import KEPT, look_record
from dashboard.models import AuditEntry, ClusterLook, ReplicaCount, ReplicaEvent, Server, ServerEnvironment
from dashboard.shared.exceptions import Unavailable
from tests.dashboard.conftest import text_of
from tests.dashboard.fleet.stand_in import NONE, PATHS, answers, recorded, settings_for
from tests.dashboard.fleet.test_kubernetes import names, watching
from tests.dashboard.uploads.file_server import FileServer, WebFile
from tests.support.certificates import Authority

pytestmark = [pytest.mark.django_db, pytest.mark.long]

REFUSED = {"kind": "Status", "message": 'pods is forbidden: User "system:serviceaccount:prod:slipway" cannot list'}


def denies(cluster: FileServer, *objects: str) -> None:
    for name in objects:
        cluster.files[PATHS[name]] = WebFile(json.dumps(REFUSED).encode(), status=403)


@pytest.fixture
def eu(cluster: FileServer, authority: Authority, root: APIClient) -> ServerEnvironment:
    answers(cluster, **recorded())
    made = root.post("/api/v1/environments", settings_for(cluster, authority), format="json")
    assert made.status_code == 201, made.data
    return ServerEnvironment.objects.get(name="eu")


def look(environment: ServerEnvironment) -> bool:
    """Look as `watch` does, and return whether something differs."""
    found = async_to_sync(look_at)(environment, last_workloads(environment))
    return look_record(environment_id=environment.pk, source=environment.source, look=found)


def test_pods_with_labels_are_servers_and_say_why_they_are_not_ready(
    cluster: FileServer, eu: ServerEnvironment, api: APIClient, as_person: Callable[..., Client], capsys: Any
) -> None:
    watching((lambda: None, lambda: len(names()) == 3 and bool(ReplicaCount.objects.count())), driving=False)
    asked = {parse_qs(urlsplit(path).query)["labelSelector"][0] for path, _ in cluster.requests if "/pods" in path}
    assert asked == {"app=triton"}
    rows = api.get("/api/v1/environments/eu/pods").data["results"]
    assert [(row["name"][-5:], row["state"], row["node"], row["restarts"], bool(row["server"])) for row in rows] == [
        ("gpdc9", "ImagePullBackOff", "node-a", 0, True),
        ("k7cnn", "CrashLoopBackOff", "node-b", 4, True),
        ("2grj5", "waiting for a node", "", 0, False),
        ("rhkkk", "ready", "node-a", 0, True),
    ]
    page = text_of(as_person(), "/environments/eu/")
    for row, sentence in zip(
        rows,
        (
            "image slipway/server:2 of container server cannot be fetched: Back-off pulling image",
            "container server was restarted 4 times, last because of OOMKilled (exit code 137) at",
            "no node takes it: 0/2 nodes are available: 2 Insufficient cpu. Add a node, or lower what the pod requests",
            "",
        ),
        strict=True,
    ):
        assert sentence in row["said"]
        assert sentence[1:] in page
    assert "raise its memory limit of 2Gi, or load fewer models. Between its starts" in rows[1]["said"]
    assert "HorizontalPodAutoscaler triton keeps 2 to 8" in page
    call_command("environments", "pods", "eu")
    assert "no node takes it" in capsys.readouterr().out.lower()


def test_why_the_number_changed_is_kept_once_and_longer_than_the_cluster_keeps_it(
    cluster: FileServer, eu: ServerEnvironment, api: APIClient, as_person: Callable[..., Client], capsys: Any
) -> None:
    assert look(eu)
    assert not look(eu)
    said = [(one.kind, one.said) for one in ReplicaEvent.objects.all()]
    new_size = "HorizontalPodAutoscaler triton: New size: 8; reason: Current number of replicas above Spec.MaxReplicas"
    assert ("autoscaler", new_size) in said
    assert sum(kind == "scaled" for kind, _ in said) == 5  # each has an event of its own
    assert sum(kind == "capacity" for kind, _ in said) == 3  # one for each pod, though the cluster has two of each
    real = recorded()
    # The cluster has forgotten its events; the autoscaler is gone; somebody sets the replicas, and an update begins.
    deployment = real["deployment"]
    deployment["metadata"] |= {"generation": 6, "annotations": {"deployment.kubernetes.io/revision": "2"}}
    deployment["metadata"]["managedFields"][0] |= {"manager": "kubectl-edit", "time": timezone.now().isoformat()}
    deployment["spec"]["replicas"], deployment["status"]["readyReplicas"] = 4, 4
    answers(cluster, events=NONE, hpas=NONE, deployment=deployment)
    assert look(eu)
    assert not look(eu)
    events = api.get("/api/v1/environments/eu/replicas/events").data["results"]
    assert {(one["kind"], one["said"]) for one in events} - set(said) == {
        ("set", "Deployment triton was set from 8 to 4 replicas in the cluster by kubectl-edit"),
        ("update", "rolling update 2 of Deployment triton began"),
    }
    counts = api.get("/api/v1/environments/eu/replicas/counts").data["results"]
    assert [(one["wanted"], one["ready"]) for one in counts] == [(4, 4), (8, 2)]
    chart = as_person().get("/environments/eu/replicas/chart?hours=720").json()
    assert chart["arms"]["wanted"]["replicas"] == [8, 8, 4, 4]
    assert chart["times"] == sorted(chart["times"])
    assert new_size in [one["text"] for one in chart["steps"]]
    assert "New size: 8" in text_of(as_person(), "/environments/eu/replicas/")
    part = as_person().get("/environments/eu/replicas/", headers={"HX-Request": "true"}).content.decode()
    assert ("New size: 8" in part, "<html" in part) == (True, False)
    assert as_person().get("/environments/production/replicas/").status_code == 404
    call_command("environments", "replicas", "eu")
    assert "set from 8 to 4 replicas in the cluster by kubectl-edit" in capsys.readouterr().out
    # What is too old goes, and of the rest there is a most.
    ReplicaEvent.objects.filter(said=new_size).update(at=timezone.now() - KEPT - timedelta(days=1))
    answers(cluster, events=real["events"])
    deployment["metadata"]["generation"], deployment["spec"]["replicas"] = 7, 5
    answers(cluster, deployment=deployment)
    look(eu)
    assert not ReplicaEvent.objects.filter(at__lt=timezone.now() - KEPT).exists()


def test_no_more_rows_are_kept_than_the_most(
    eu: ServerEnvironment, cluster: FileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(services, "MOST_KEPT", 2)
    look(eu)
    assert eu.replica_events.count() == 2
    assert eu.replica_events.earliest("at").kind != "scaled"


def test_missing_rights_are_said_once_and_all_else_goes_on(
    cluster: FileServer, eu: ServerEnvironment, root: APIClient, as_person: Callable[..., Client]
) -> None:
    denies(cluster, "events", "hpas")
    look(eu)
    (said,) = root.get("/api/v1/environments/eu/replicas").data["trouble"]
    assert "apiGroups [autoscaling], resources [horizontalpodautoscalers] and verbs [list]" in said
    assert 'one with apiGroups [""], resources [events] and verbs [list]' in said
    assert "2 of 8 wanted replicas ready" in text_of(as_person(), "/environments/eu/")
    # Without the right to see autoscalers, nobody may set what one of them may set too.
    refused = root.put("/api/v1/environments/eu/replicas", {"replicas": 3}, format="json")
    assert (refused.status_code, "resources [horizontalpodautoscalers]" in refused.data["error"]) == (403, True)
    denies(cluster, *PATHS)
    look(eu)
    shown = root.get("/api/v1/environments/eu/replicas").data
    assert (shown["workloads"][0]["name"], shown["wanted"], shown["ready"]) == ("triton", 8, 2)
    cluster.files[PATHS["pods"]] = WebFile(status=503)
    watching((lambda: None, lambda: "answered with status 503" in str(_trouble(root))), driving=False)
    # Other pods are meant from now on, of which nothing is known.
    root.patch("/api/v1/environments/eu", {"kubernetes_selector": "prod/app=other"}, format="json")
    assert (ReplicaEvent.objects.count(), ReplicaCount.objects.count()) == (0, 0)


def main_of(page: str) -> str:
    """Return a page without what surrounds all pages."""
    return unescape(page.partition("<main")[2].partition("</main>")[0])


def test_a_cluster_that_allows_nothing_is_said_in_one_note(
    cluster: FileServer, eu: ServerEnvironment, root: APIClient, as_person: Callable[..., Client]
) -> None:
    answers(cluster, hpas=NONE)
    look(eu)
    denies(cluster, *PATHS)
    watching((lambda: None, lambda: "deployments" in str(_trouble(root))), driving=False)
    (said,) = root.get("/api/v1/environments/eu/replicas").data["trouble"]
    for resource in ("pods", "deployments", "horizontalpodautoscalers", "events"):
        assert said.count(f"resources [{resource}]") == 1, resource
    assert "the servers that it led to stay" in said
    operator = as_person("operate")
    for address in ("/environments/eu/", "/environments/eu/replicas/"):
        page = main_of(text_of(operator, address))
        assert page.count('class="note ') == page.count(said[1:]) == 1, address
    refused = operator.post("/environments/eu/replicas/set", {"replicas": "3", "seen": "8"})
    page = main_of(refused.content.decode())
    assert (refused.status_code, page.count('class="note ')) == (403, 1)
    assert "does not let system:serviceaccount:prod:slipway get deployments (403)" in page
    settings = {"check": "1", "kubernetes_selector": "prod/app=triton", "kubernetes_address": cluster.url}
    administrator = as_person(is_superuser=True)
    page = main_of(administrator.post("/environments/eu/change", settings).content.decode())
    assert page.count('class="note ') == page.count("list pods (403)") == 1


@pytest.mark.parametrize(
    ("address", "by"),
    [
        ("/environments/eu/replicas/set", "page"),
        ("/environments/eu/change", "page"),
        ("/environments/eu/change", "pods"),
    ],
)
def test_a_page_that_answers_a_refused_form_leads_on_to_its_other_pages(
    cluster: FileServer, eu: ServerEnvironment, as_person: Callable[..., Client], address: str, by: str
) -> None:
    real = recorded()["pods"]["items"][0]
    pods = [{**real, "metadata": {**real["metadata"], "name": f"pod-{number}"}} for number in range(60)]
    answers(cluster, pods={"items": pods})
    look(eu)
    for number in range(60):
        at = {"http_url": f"http://10.0.0.{number}:8000", "grpc_url": "x", "metrics_url": "http://x"}
        Server.objects.create(name=f"server-{number:02}", environment=eu, **at)
        event = {
            "uid": str(number),
            "at": timezone.now(),
            "kind": "set",
            "reason": "",
            "about": "",
            "said": f"number {number}",
        }
        eu.replica_events.create(bad=False, **event)
    client = as_person(is_superuser=True)
    refused = client.post(address, {"replicas": "99", "replicas_max": "-1"})
    assert refused.status_code == 400
    (link,) = re.findall(rf'href="([^"]*\b{by}=2)"', refused.content.decode())
    shown = client.get(urljoin(address, link), follow=True)
    assert shown.status_code == 200
    assert shown.templates[0].name == refused.templates[0].name
    assert "Page 2 of 2" in shown.content.decode()


def _trouble(root: APIClient) -> object:
    return root.get("/api/v1/environments/eu/replicas").data["trouble"]


@pytest.mark.parametrize("looked", [False, True])
@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (WebFile(breaks_after=[0] * 99, content=b"{"), "does not answer: nothing listens there, or the connection was lost"),
        (WebFile(b"{}", holds_at=1), "did not answer in 0 s"),
        (WebFile(json.dumps(REFUSED).encode(), status=403), "does not let system:serviceaccount:prod:slipway list pods (403)"),
        (WebFile(b"<html>", status=502), "answered with status 502"),
    ],
    ids=["stopped", "hanging", "denying", "proxy"],
)  # fmt: skip
def test_an_api_that_is_away_is_said_with_what_was_seen_before(
    cluster: FileServer,
    eu: ServerEnvironment,
    root: APIClient,
    as_person: Callable[..., Client],
    monkeypatch: pytest.MonkeyPatch,
    capsys: Any,
    answer: WebFile,
    sentence: str,
    looked: bool,
) -> None:
    """The same words on both pages and over REST, whether or not the cluster was seen before."""
    if looked:
        answers(cluster, hpas=NONE)
        look(eu)
        ServerEnvironment.objects.update(created_at=timezone.now() - timedelta(days=1))
        ClusterLook.objects.update(looked_at=timezone.now() - timedelta(minutes=5))
    if answer.holds_at:
        monkeypatch.setattr(kubernetes, "ANSWER_S", 0.3)
    given = replace(answer, released=Event(), breaks_after=answer.breaks_after.copy())
    cluster.files = dict.fromkeys(PATHS.values(), given)
    watching((lambda: None, lambda: sentence in str(_trouble(root)) and ClusterLook.objects.exists()), driving=False)
    shown = root.get("/api/v1/environments/eu/replicas").data
    said = [one for one in shown["trouble"] if sentence in one]
    assert len(said) == 1
    assert (shown["wanted"], shown["ready"]) == ((8, 2) if looked else (None, None))
    assert (shown["looked_at"] is not None) == (looked or answer.status == 403)
    for address in ("/environments/eu/", "/environments/eu/replicas/"):
        page = unescape(text_of(as_person(), address))
        assert page.count(said[0][1:]) == 1, address
        assert ("seen last" in page) == looked
    assert ("wanted replicas are ready" if looked else "No replica was seen yet, for the reason above") in page
    call_command("environments", "replicas", "eu")
    assert said[0][1:] in capsys.readouterr().out
    # Nobody can set them, and what was typed stays.
    operator = as_person("operate")
    refused = operator.post("/environments/eu/replicas/set", {"replicas": "3", "seen": "8"})
    assert refused.status_code in ((503, 403) if looked else (409,))
    assert ('value="3" required' if looked else "has seen none") in refused.content.decode()
    assert "None" not in refused.content.decode()


def test_replicas_are_set_within_the_bounds_unless_somebody_would_undo_it(
    cluster: FileServer,
    eu: ServerEnvironment,
    root: APIClient,
    api: APIClient,
    as_person: Callable[..., Client],
) -> None:
    address = "/api/v1/environments/eu/replicas"

    def set_to(replicas: int, client: APIClient = api, **more: object) -> tuple[int, str]:
        answer = client.put(address, {"replicas": replicas, **more}, format="json")
        return answer.status_code, str(answer.data.get("error") or answer.data.get("detail") or "")

    assert "it is not known yet what makes the pods" in set_to(3)[1]
    look(eu)
    assert "triton sets the replicas of Deployment triton, from 2 to 8, and would undo this" in set_to(3)[1]
    real = recorded()
    made = real["deployment"] | {
        "metadata": real["deployment"]["metadata"]
        | {"ownerReferences": [{"kind": "InferenceService", "name": "iris", "controller": True}]}
    }
    answers(cluster, hpas=NONE, deployment=made)
    assert set_to(3) == (
        409,
        "InferenceService iris made Deployment triton, and would undo this: change the replicas there",
    )
    answers(cluster, deployment=real["deployment"])
    assert set_to(10) == (400, "eu has from 1 to 9 replicas, so it cannot have 10")
    assert set_to(3, seen=2) == (409, "Deployment triton has 8 replicas by now, not 2: look at it, and try again")
    cluster.puts_status = 409
    assert set_to(3) == (
        409,
        "somebody else changed triton in the cluster at the same moment: look at it, and try again",
    )
    cluster.puts_status = 403
    assert "resources [deployments/scale] and verbs [update]" in set_to(3)[1]
    assert not AuditEntry.objects.filter(action="environment.scale").exists()
    cluster.puts_status = 200
    look(eu)
    page = as_person("operate")
    assert "Replicas of Deployment triton" in text_of(page, "/environments/eu/replicas/")
    assert "Set replicas" not in text_of(as_person(), "/environments/eu/replicas/")
    assert as_person().post("/environments/eu/replicas/set", {"replicas": "3"}).status_code == 403
    told = page.post("/environments/eu/replicas/set", {"replicas": "3", "seen": "8"}, follow=True).content.decode()
    assert "eu is scaled to 3" in told
    path, body = cluster.puts[-1]
    assert path == f"{PATHS['scale']}?fieldManager=slipway"
    assert json.loads(body)["spec"] == {"replicas": 3}
    assert json.loads(body)["metadata"]["resourceVersion"] == real["scale"]["metadata"]["resourceVersion"]
    assert AuditEntry.objects.get(action="environment.scale").after == {"replicas": 3}
    # `watch` sees the same change, and does not tell it again.
    after = real["deployment"]
    after["metadata"]["generation"] += 1
    after["spec"]["replicas"] = 3
    answers(cluster, deployment=after, scale={**real["scale"], "spec": {"replicas": 3}})
    look(eu)
    assert eu.replica_events.filter(kind__in=("set", "person")).count() == 1
    call_command("environments", "scale", "eu", "4")
    assert json.loads(cluster.puts[-1][1])["spec"] == {"replicas": 4}
    sent = len(cluster.puts)
    assert set_to(3)[0] == 200  # it has them already
    assert len(cluster.puts) == sent
    for wrong in ("", "x"):
        page.post("/environments/eu/replicas/set", {"replicas": wrong})
    assert len(cluster.puts) == sent
    root.patch("/api/v1/environments/eu", {"replicas_max": 0}, format="json")
    assert "an administrator first gives eu bounds" in set_to(3)[1]
    with pytest.raises(CommandError, match="an administrator first gives eu bounds"):
        call_command("environments", "scale", "eu", "4")
    assert (
        root.patch("/api/v1/environments/eu", {"replicas_min": 5, "replicas_max": 4}, format="json").status_code == 400
    )


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (WebFile(b"<html>Sign in</html>"), "gave an answer that is not understood, at ."),
        (WebFile(b'{"items": [{"metadata": {"na'), "gave an answer that is not understood, at ."),
        (WebFile(b'{"kind": "Status"}'), "gave an answer that is not understood, at .items"),
        (WebFile(b'{"items": [null]}'), "gave an answer that is not understood, at .items.0"),
        (WebFile(b'{"items": [], "metadata": "x"}'), "gave an answer that is not understood, at .metadata"),
        (WebFile(status=429, retry_after="7"), "has too many requests to answer (429): try again in 7 s"),
        (WebFile(b'{"items": [], "metadata": {"continue": "old"}}'), "answered with status 410"),
        (WebFile(b'{"items": [], "metadata": {"continue": "same"}}'), "gives the same part of a list again"),
    ],
)
def test_an_answer_that_nobody_expects_is_a_sentence(
    cluster: FileServer, eu: ServerEnvironment, answer: WebFile, sentence: str
) -> None:
    cluster.files[PATHS["pods"]] = answer
    cluster.files[f"{PATHS['pods']}?labelSelector=app%3Dtriton&continue=old"] = WebFile(b"{}", status=410)
    with pytest.raises(Unavailable) as raised:
        look(eu)
    assert sentence in raised.value.message


def test_lists_in_parts_and_objects_without_a_status_are_read(cluster: FileServer, eu: ServerEnvironment) -> None:
    real = recorded()
    bare = [{"metadata": one["metadata"], "spec": {}} for one in real["pods"]["items"]]
    bare[0]["metadata"]["creationTimestamp"] = "9999-12-31T23:59:59-14:00"
    answers(
        cluster,
        pods={"items": bare[:1], "metadata": {"continue": "more"}},
        hpas={"items": None},
        events={"items": None},
    )
    more = f"{PATHS['pods']}?labelSelector=app%3Dtriton&continue=more"
    cluster.files[more] = WebFile(json.dumps({"items": bare[1:]}).encode())
    huge = {"metadata": real["deployment"]["metadata"], "spec": {"replicas": 2**40}}
    answers(cluster, deployment=huge)
    assert look(eu)
    assert [one.pod["label"] for one in pod_standings(eu, replicas_of(eu).pods)] == ["starting"] * 4
    assert (replicas_of(eu).wanted, replicas_of(eu).ready) == (2**31 - 1, 0)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"kubernetes_selector": "app=triton"}, "a label selector, as prod/app=triton"),
        ({"kubernetes_service": "prod/triton"}, "not by two of them"),
        ({"tls": True}, "certificates are checked for the name of a service"),
        ({"replicas_max": 5000}, "from 0 to 1000 replicas"),
    ],
)
def test_settings_that_cannot_work_are_refused(
    eu: ServerEnvironment, root: APIClient, change: dict[str, object], sentence: str
) -> None:
    refused = root.patch("/api/v1/environments/eu", change, format="json")
    assert refused.status_code == 400
    assert sentence in str(refused.data)


def test_a_service_gives_the_selector_of_its_pods(cluster: FileServer, eu: ServerEnvironment, root: APIClient) -> None:
    change = {"kubernetes_selector": "", "kubernetes_service": "prod/triton"}
    assert root.patch("/api/v1/environments/eu", change, format="json").status_code == 200
    eu.refresh_from_db()
    look(eu)
    assert len(root.get("/api/v1/environments/eu/pods").data["results"]) == 4
    assert "labelSelector=app%3Dtriton" in next(path for path, _ in cluster.requests if path.startswith(PATHS["pods"]))


def a_pod(**status: Any) -> Pod:
    return {"metadata": {"name": "triton-0"}, "spec": {"nodeName": "node-a"}, "status": status}  # type: ignore[typeddict-item]


def waiting(reason: str, message: str = "") -> Pod:
    state = {"waiting": {"reason": reason, "message": message}}
    return a_pod(phase="Pending", containerStatuses=[{"name": "server", "image": "i:1", "state": state}])


def running(*conditions: tuple[str, str], ready: bool = False, started: bool = True, **more: Any) -> Pod:
    container = {"name": "server", "ready": ready, "started": started, "state": {"running": {}}, **more}
    told = [{"type": kind, "status": status} for kind, status in conditions]
    return a_pod(phase="Running", conditions=told, containerStatuses=[container])


def ended(reason: str, code: int) -> dict[str, Any]:
    return {"restartCount": 1, "lastState": {"terminated": {"reason": reason, "exitCode": code}}}


@pytest.mark.parametrize(
    ("pod", "label", "sentence"),
    [
        (waiting("CreateContainerError", 'secret "keys" not found'), "CreateContainerError", 'secret "keys" not found'),
        (waiting("ContainerCreating"), "starting", "its image or volumes are not there yet"),
        (running(("Ready", "False"), started=False), "starting", "the startup probe of container server has not passed"),
        (running(("Ready", "False")), "not ready", "models may be loading, else see `kubectl -n prod logs triton-0 -c server`"),
        (running(("Ready", "False"), ready=True), "node lost", "node node-a does not answer"),
        (running(("Ready", "True"), ready=True, **ended("Error", 1)), "ready", "because of Error (exit code 1): see `kubectl"),
        (running(("Ready", "True"), ready=True, **ended("Error", 137)), "ready", "as after a liveness probe that failed"),
        (a_pod(phase="Failed", reason="Evicted", message="low on memory."), "ended", "node ended it (Evicted): low on memory"),
        (a_pod(phase="Succeeded"), "ended", "nothing starts them again"),
        (a_pod(), "starting", "its node has not begun with it yet"),
    ],
)  # fmt: skip
def test_each_state_of_a_pod_has_a_sentence(pod: Pod, label: str, sentence: str) -> None:
    row = pod_row(pod, "prod")
    assert row["label"] == label
    assert sentence in row["said"]


def test_an_init_container_that_has_done_its_work_is_no_fault() -> None:
    pod = running(("Ready", "True"), ready=True)
    done = {"name": "owner", "ready": True, "state": {"terminated": {"reason": "Completed", "exitCode": 0}}}
    pod["status"]["initContainerStatuses"] = [done]  # type: ignore[typeddict-item]
    assert (pod_row(pod, "prod")["label"], pod_row(pod, "prod")["said"]) == ("ready", "")
    done["state"] = {"terminated": {"reason": "Error", "exitCode": 1}}
    assert "container owner has ended, last because of Error" in pod_row(pod, "prod")["said"]


def test_a_pod_that_ends_too_late_names_its_node() -> None:
    pod = running(("Ready", "False"), ready=True)
    pod["metadata"]["deletionTimestamp"] = timezone.now().isoformat()
    assert pod_row(pod, "prod")["label"] == "ending"
    pod["metadata"]["deletionTimestamp"] = (timezone.now() - timedelta(minutes=2)).isoformat()
    assert "`kubectl delete node node-a` lets the pod go" in pod_row(pod, "prod")["said"]


def test_a_chart_begins_with_the_number_from_before(eu: ServerEnvironment) -> None:
    eu.replica_counts.create(at=timezone.now() - timedelta(hours=5), wanted=2, ready=1)
    eu.replica_counts.create(at=timezone.now() - timedelta(minutes=5), wanted=3, ready=3)
    found = readings(eu, timedelta(hours=1))
    assert found["arms"]["wanted"]["replicas"] == [2, 2, 3, 3]
    assert found["until"] - found["times"][0] == pytest.approx(3600, abs=60)
    ClusterLook.objects.create(environment=eu, looked_at=timezone.now() - timedelta(minutes=2))
    found = readings(eu, timedelta(hours=1))
    assert found["until"] - found["times"][-1] == pytest.approx(120, abs=60)
    assert readings(eu, timedelta(minutes=1))["times"] == []
