"""A TorchServe archive is uploaded like any model that is code: looked into, published, shown; and what is none is refused."""

import io
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from rest_framework.test import APIClient

from dashboard.access.authorisation import Actor
from dashboard.configuration.drift import model_adopt
from dashboard.models import Upload, Version
from dashboard.shared.exceptions import Forbidden
from dashboard.uploads.publication import upload_publish
from dashboard.uploads.services import upload_create
from dashboard.versions.moves import version_archive
from tests.dashboard.conftest import text_of, version_from
from tests.support.torchserve_archives import archive, files_of, war

pytestmark = pytest.mark.django_db

HANDLER = '''
def handle(data, context):
    """Answers <script>alert("nothing")</script>."""
    if data is None:
        return None
    return [{"words": len(row["body"].split())} for row in data]
'''
SETTINGS = {"batchSize": 4, "maxBatchDelay": 50, "minWorkers": 2, "continuousBatching": True, "handler": {"beam": 3}}
PACKED = Path(__file__).with_name("archived_by_torch_model_archiver.mar")  # the real one, 0.12.0
BOMB_BYTES = 256 << 20


def words(tmp_path: Path, **more: Any) -> bytes:
    """An archive with everything that people look at."""
    files = {"requirements.txt": "regex==2024.1\n", "index_to_name.json": '{"0": "cat"}', "weights.bin": b"\x00" * 5000}
    named = {"handler": HANDLER, "version": "1.0-rc2", "config": SETTINGS, "files": files, **more}
    return archive(tmp_path / "words.mar", requirementsFile="requirements.txt", **named).read_bytes()


@pytest.fixture
def version(inspected: Callable[..., Upload], actor: Actor, tmp_path: Path) -> Version:
    upload = inspected({"words.mar": words(tmp_path)}, model_name="words")
    assert (upload.state, upload.error) == ("inspected", "")
    return version_from(upload_publish(upload=upload, actor=actor, load=False))


def test_an_archive_is_code_and_takes_that_right(person: Callable[..., Any], received: Callable[..., Upload]) -> None:
    weak = Actor(user=person("upload_data"))
    with pytest.raises(Forbidden, match=r"words\.mar"):
        upload_create(actor=weak, model_name="words", files=[{"path": "words.mar", "size": 10}])
    assert not Upload.objects.exists()


def test_the_review_shows_what_the_archive_is(
    inspected: Callable[..., Upload], actor: Actor, api: APIClient, client: Client, tmp_path: Path
) -> None:
    upload = inspected({"words.mar": words(tmp_path)}, model_name="mine")
    client.force_login(actor.user)
    page = text_of(client, f"/uploads/{upload.pk}/")
    for said in (
        "TorchServe archive",
        "<b>words</b> 1.0-rc2, published as mine",
        "sets keys without an effect here: continuousBatching",
        "The largest batch",
        "&#x27;requirements.txt&#x27; is installed only where",
        "len(row[&quot;body&quot;].split())",
        "&lt;script&gt;",
        "can run code",
    ):
        assert said in page, said
    assert "<script>alert" not in page
    assert 'backend: "torchserve"' in upload.proposal["config"]
    assert "cat" in text_of(client, f"/uploads/{upload.pk}/?file=index_to_name.json")
    reported = api.get(f"/api/v1/uploads/{upload.pk}").json()["proposal"]
    assert (reported["format"], reported["archive"]["version"]) == ("torchserve", "1.0-rc2")


def test_the_versions_page_shows_torchserves_version_and_leads_inside(
    version: Version, actor: Actor, api: APIClient, client: Client
) -> None:
    client.force_login(actor.user)
    page = text_of(client, "/models/words/versions")
    assert "1.0-rc2" in page
    assert "/models/words/versions/1/model-archive" in page
    inside = text_of(client, "/models/words/versions/1/model-archive")
    for said in (
        "1.0-rc2",
        "handler.py",
        "regex==2024.1",
        "4.88 KiB",
        "beam: 3",
        "Passed to the handler unchanged",
        "not served",
    ):
        assert said in inside, said
    assert "Version 1 (1.0-rc2)" in text_of(client, "/models/words/playground")
    reported = api.get("/api/v1/models/words/versions/1/model_archive").json()
    assert reported["manifest"]["model"]["modelVersion"] == "1.0-rc2"
    assert reported["text"]["name"] == "handler.py"
    assert {row["key"]: row["served"] for row in reported["settings"]}["continuousBatching"] is False
    assert api.get("/api/v1/models/words").json()["archive_versions"] == {"1": "1.0-rc2"}


def test_a_text_of_the_archive_is_shown_by_its_name_and_nothing_else_is(version: Version, api: APIClient) -> None:
    address = "/api/v1/models/words/versions/1/model_archive"
    assert api.get(address, {"file": "index_to_name.json"}).json()["text"]["text"] == '{"0": "cat"}'
    for name in ("weights.bin", "missing.py", "../../../etc/passwd.txt", "/etc/hosts.txt"):
        assert api.get(address, {"file": name}).status_code == 404, name


def test_an_archived_version_can_still_be_looked_into(
    version: Version, inspected: Callable[..., Upload], actor: Actor, api: APIClient, tmp_path: Path
) -> None:
    upload = inspected({"words.mar": words(tmp_path, version="2.0")}, model_name="words")
    version_from(upload_publish(upload=upload, actor=actor, make_live=True))
    version_archive(version=Version.objects.get(number=1), actor=actor)
    reported = api.get("/api/v1/models/words/versions/1/model_archive")
    assert reported.json()["manifest"]["model"]["modelVersion"] == "1.0-rc2"


def test_a_folder_with_an_archive_is_adopted_with_its_version(actor: Actor, settings: Any, api: APIClient) -> None:
    archive(Path(settings.MODEL_REPOSITORY) / "copied" / "1" / "model.mar", "copied", version="3.1")
    model_adopt(name="copied", actor=actor)
    row = Version.objects.get(model__name="copied")
    assert (row.format, row.archive_version) == ("torchserve", "3.1")
    assert api.get("/api/v1/models/copied/versions/1/model_archive").json()["handler_file"] == "handler.py"


def test_an_archive_that_was_unpacked_keeps_the_names_of_its_files(
    inspected: Callable[..., Upload], actor: Actor, api: APIClient
) -> None:
    held = files_of("words", files={"model.pt": b"weights"}, serializedFile="model.pt")
    upload = inspected({f"words/{name}": content for name, content in held.items()}, model_name="words")
    assert (upload.state, upload.error, upload.proposal["format"]) == ("inspected", "", "torchserve")
    version = version_from(upload_publish(upload=upload, actor=actor, load=False))
    assert version.details["files"] == ["MAR-INF/MANIFEST.json", "handler.py", "model.pt"]
    assert api.get("/api/v1/models/words/versions/1/model_archive").json()["text"]["name"] == "handler.py"


def test_an_archive_as_a_tar_file_stays_packed(
    inspected: Callable[..., Upload], actor: Actor, api: APIClient, settings: Any
) -> None:
    upload = inspected({"words.tar.gz": tar({f"words/{name}": data for name, data in WHOLE.items()})}, "words")
    assert (upload.state, upload.error, upload.proposal["format"]) == ("inspected", "", "torchserve")
    version = version_from(upload_publish(upload=upload, actor=actor, load=False))
    assert version.details["files"] == ["model.mar"]
    assert api.get("/api/v1/models/words/versions/1/model_archive").json()["handler_file"] == "handler.py"
    other = inspected({"other.tgz": tar({"model.onnx": b"x"})}, "other")
    assert other.error.startswith("'other.tgz' cannot be served, because the archive is not unpacked here")


def test_a_workflow_is_sent_to_where_it_can_be_imported(inspected: Callable[..., Upload], tmp_path: Path) -> None:
    upload = inspected({"flow.war": war(tmp_path / "flow.war", "flow", "dag: {pre: [post]}\n").read_bytes()}, "flow")
    assert (upload.state, "Import a model store" in upload.error) == ("failed", True)


def test_an_unpacked_archive_may_have_a_folder_named_by_a_number(
    inspected: Callable[..., Upload], actor: Actor
) -> None:
    upload = inspected(
        {f"words/{name}": data for name, data in {**WHOLE, "1/labels.txt": b"cat"}.items()}, model_name="words"
    )
    assert (upload.state, upload.error) == ("inspected", "")
    version = version_from(upload_publish(upload=upload, actor=actor, load=False))
    assert version.details["files"] == ["1/labels.txt", "MAR-INF/MANIFEST.json", "handler.py"]


def test_a_version_of_another_kind_has_no_archive(published: Callable[..., Version], api: APIClient) -> None:
    published()
    answer = api.get("/api/v1/models/relu/versions/1/model_archive")
    assert (answer.status_code, answer.json()["error"]) == (404, "version 1 of 'relu' is no TorchServe archive")


def packed(files: dict[str, bytes]) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as file:
        for name, data in files.items():
            file.writestr(name, data)
    return content.getvalue()


def tar(files: dict[str, bytes]) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as file:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            file.addfile(member, io.BytesIO(data))
    return content.getvalue()


def bomb() -> bytes:
    """A thousand times as large as it is sent."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as file:
        for name, data in files_of("bomb").items():
            file.writestr(name, data)
        with file.open("weights.bin", "w", force_zip64=True) as weights:
            for _ in range(BOMB_BYTES >> 24):
                weights.write(bytes(1 << 24))
    return content.getvalue()


def tarred() -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as file:
        link = tarfile.TarInfo("MAR-INF/MANIFEST.json")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        file.addfile(link)
    return content.getvalue()


WHOLE = files_of("bad")
BAD = {
    "cut off": (lambda: packed(WHOLE)[:-40], "is damaged or cut off: pack or copy it again"),
    "text": (lambda: b"not a zip at all", "no model archive: expected a zip or a tar file"),
    "empty": (lambda: b"", "no model archive"),
    "no manifest": (
        lambda: packed({"handler.py": b"x = 1"}),
        "no MAR-INF/MANIFEST.json: pack it with torch-model-archiver",
    ),
    "manifest that is none": (lambda: packed({**WHOLE, "MAR-INF/MANIFEST.json": b"{"}), "is not JSON"),
    "no handler": (lambda: packed(files_of("bad", handler="")), "the archive has no handler 'handler.py'"),
    "handler that is none": (
        lambda: packed(files_of("bad", handler="def handle(:")),
        "'handler.py', line 1: invalid syntax",
    ),
    "weights missing": (lambda: packed(files_of("bad", serializedFile="w.pt")), "no 'w.pt', which its manifest names"),
    "dots": (
        lambda: packed({**WHOLE, "../../evil.py": b"x"}),
        "'../../evil.py' in the archive is not a plain relative",
    ),
    "link": (tarred, "is a link or a device"),
    "settings": (lambda: packed(files_of("bad", config={"parallelType": "tp"})), "divides one model among several"),
    "bomb": (bomb, "times its size; at most 200 is allowed"),
}


@pytest.mark.parametrize("kind", BAD)
def test_what_is_no_sound_archive_is_refused_with_the_reason_and_leaves_nothing(
    kind: str, inspected: Callable[..., Upload], as_person: Callable[..., Client], settings: Any
) -> None:
    make, reason = BAD[kind]
    upload = inspected({"bad.mar": make()}, model_name="bad")
    assert upload.state == "failed"
    assert reason in upload.error
    page = text_of(as_person("upload_code"), f"/uploads/{upload.pk}/").replace("&#x27;", "'")
    assert reason.removeprefix("the ") in page
    assert not any(Path(settings.MODEL_REPOSITORY).iterdir())


# -- its configuration -------------------------------------------------------------------------------------------------
def test_the_form_has_torchserves_settings_in_words_and_says_what_the_archive_decides(
    version: Version, actor: Actor, client: Client
) -> None:
    client.force_login(actor.user)
    page = text_of(client, "/models/words/configuration")
    assert "<code>batchSize</code> 4" in page
    assert "<code>minWorkers</code> 2" in page
    assert "continuousBatching" not in page
    assert 'name="torchserve_response_timeout_s"' in page


def test_the_form_writes_torchserves_settings_and_refuses_wrong_ones_at_their_fields(
    version: Version, api: APIClient
) -> None:
    address, base = "/api/v1/models/words/config/preview", version.config
    fields = {
        "torchserve_response_timeout_s": "7",
        "torchserve_install": True,
        "max_batch_size": "16",
        "batching": True,
    }
    reported = api.post(address, {"base": base, "fields": fields}, format="json").json()
    assert reported["valid"], reported["problems"]
    assert 'key: "torchserve.response_timeout_s"' in reported["text"]
    assert reported["fields"]["torchserve_response_timeout_s"] == "7"
    assert reported["fields"]["parameters"] == []
    left = {"torchserve_response_timeout_s": "", "torchserve_install": False}
    assert (
        "torchserve." not in api.post(address, {"base": reported["text"], "fields": left}, format="json").json()["text"]
    )
    wrong = {"torchserve_response_timeout_s": "soon", "torchserve_startup_timeout_s": "0"}
    problems = api.post(address, {"base": base, "fields": wrong}, format="json").json()["problems"]
    assert {row["field"]: row["message"][:40] for row in problems} == {
        "torchserve_response_timeout_s": "expected a whole number of seconds from ",
        "torchserve_startup_timeout_s": "expected a whole number of seconds from ",
    }


@pytest.mark.parametrize("parameter", ["torchserve.install_py_dep_per_model", "torchserve.handler"])
def test_what_makes_other_code_run_takes_the_right_to_upload_code(
    version: Version, person: Callable[..., Any], parameter: str
) -> None:
    weak = APIClient()
    weak.force_authenticate(person("operate"))
    value = "true" if "install" in parameter else "other.py"
    text = f'{version.config}\nparameters {{ key: "{parameter}" value {{ string_value: "{value}" }} }}'
    answer = weak.put("/api/v1/models/words/config", {"text": text}, format="json")
    assert (answer.status_code, parameter in answer.json()["error"]) == (403, True)
    batching = f"{version.config}\nmax_batch_size: 8"
    assert weak.put("/api/v1/models/words/config", {"text": batching}, format="json").status_code == 200


def test_torchserves_version_stands_wherever_a_version_is_chosen(
    version: Version, inspected: Callable[..., Upload], actor: Actor, client: Client, tmp_path: Path
) -> None:
    upload = inspected({"words.mar": words(tmp_path, version="2.0")}, model_name="words")
    version_from(upload_publish(upload=upload, actor=actor, make_live=True))
    client.force_login(actor.user)
    assert '<option value="1">1 (1.0-rc2)</option>' in text_of(client, "/models/words/versions")
    for path, said in {
        "": "Version 1 (1.0-rc2)</option>",
        "/compare": "Version 2 (2.0)</option>",
        "/releases/": "version 2 (2.0)",
        "/versions/1/live": "Make version 1 (1.0-rc2) live",
    }.items():
        assert said in text_of(client, f"/models/words{path or '/'}"), path


def test_what_torch_model_archiver_packs_is_published_and_shown(
    inspected: Callable[..., Upload], actor: Actor, api: APIClient
) -> None:
    upload = inspected({"words.mar": PACKED.read_bytes()}, model_name="words")
    assert (upload.state, upload.error) == ("inspected", "")
    assert version_from(upload_publish(upload=upload, actor=actor, load=False)).archive_version == "1.2.3"
    archive = api.get("/api/v1/models/words/versions/1/model_archive").json()
    assert (archive["handler_file"], archive["settings"][0]["value"]) == ("my_handler.py", "2")
