"""Damaged model files and configurations: the load ends with a sentence or a model, the server lives and serves the others."""

import io
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.e2e.fuzzing.inputs import sound
from tests.serving.frontends.raw_http import infer_body, tensor
from tests.support import model_factory
from tests.support.serving_process import ServerProcess, wait_until

KEPT = "kept"
NAME = "damaged"
PIECES = [b"", b"\0", b"\xff" * 10, b"\n", b"}", b"{", b'"', b"name:", b"dims: -1", b"[", b"]", b"/" * 9, b"PK\x03\x04"]


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fuzz") / "originals"
    model_factory.onnx_scale(folder, "onnx")
    model_factory.onnx_sequence_controls(folder, "sequence")
    model_factory.torchscript_add_sub(folder, "torch")
    model_factory.python_scale(folder, "python")
    warm = """model_warmup { name: "w" batch_size: 1 inputs { key: "INPUT0"
        value { data_type: TYPE_FP32 dims: [1] input_data_file: "raw" } } }"""
    model_factory.onnx_scale(folder, "warmed", extra=warm)
    (folder / "warmed" / "warmup").mkdir()
    (folder / "warmed" / "warmup" / "raw").write_bytes(np.ones(1, np.float32).tobytes())
    return folder


@pytest.fixture(scope="module")
def server(originals: Path) -> Iterator[ServerProcess]:
    repository = originals.parent / "models"
    model_factory.onnx_scale(repository, KEPT)
    flags = ("--model-control-mode=explicit", f"--load-model={KEPT}")
    with ServerProcess(repository, *flags, "--log-info=false") as server, sound(server):
        yield server


@st.composite
def damaged(draw: st.DrawFn, whole: bytes) -> bytes:
    """Bytes with some of them flipped, cut out, doubled or overwritten, or the end missing."""
    changed = bytearray(whole)
    for _ in range(draw(st.integers(1, 6))):
        at = draw(st.integers(0, len(changed)))
        action = draw(st.integers(0, 4))
        if action == 0 and at < len(changed):
            changed[at] ^= 1 << draw(st.integers(0, 7))
        elif action == 1:
            del changed[at : at + draw(st.sampled_from([1, 2, 8, 100]))]
        elif action == 2:
            changed[at:at] = draw(st.sampled_from(PIECES) | st.binary(max_size=9))
        elif action == 3:
            changed[at:at] = changed[at : at + 40]
        else:
            del changed[at:]
    return bytes(changed)


@st.composite
def damaged_archives(draw: st.DrawFn, whole: bytes) -> bytes:
    """A whole zip archive in which one member is damaged, missing or named otherwise."""
    members = {}
    with zipfile.ZipFile(io.BytesIO(whole)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    name = draw(st.sampled_from(sorted(members)))
    content = members.pop(name)
    how = draw(st.integers(0, 3))
    if how:
        name = draw(st.sampled_from(["../x", "/x", "x" * 300, name.upper()])) if how == 1 else name
        members[name] = draw(damaged(content))
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w") as archive:
        for member, data in members.items():
            archive.writestr(member, data)
    return written.getvalue()


@settings(max_examples=100)
@given(data=st.data(), kind=st.sampled_from(["onnx", "sequence", "torch", "python", "warmed"]))
def test_a_damaged_file_is_refused_with_a_sentence_or_served(
    originals: Path, server: ServerProcess, data: st.DataObject, kind: str
) -> None:
    files = {str(path.relative_to(originals / kind)): path for path in (originals / kind).rglob("*") if path.is_file()}
    # Damaged Python source is a program like any other: its configuration alone is damaged.
    chosen = data.draw(st.sampled_from(sorted(name for name in files if not name.endswith(".py"))))
    archive = chosen.endswith(".pt") and data.draw(st.booleans())
    strategy = damaged_archives if archive else damaged
    content = data.draw(strategy(files[chosen].read_bytes()))
    put(
        originals.parent / "models" / NAME,
        {name: path.read_bytes() for name, path in files.items()} | {chosen: content},
    )
    status, said = server.post(f"/v2/repository/models/{NAME}/load")
    if status == 200:
        ask(server)
    else:
        assert status in (400, 404, 503) or "load failed for model" in said["error"], (status, said)
        assert str(originals.parent) not in said["error"]
    assert server.post(f"/v2/repository/models/{NAME}/unload")[0] in (200, 404)
    wait_until(lambda: unloaded(server), what="the end of the damaged model")
    assert server.post(f"/v2/models/{KEPT}/infer", json.loads(infer_body(tensor([1.0]))))[0] == 200


def put(folder: Path, files: dict[str, bytes]) -> None:
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.is_file():
            path.unlink()
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def ask(server: ServerProcess) -> None:
    status, said = server.post(f"/v2/models/{NAME}/infer", json.loads(infer_body(tensor([1.0]))))
    assert status in (200, 400, 404, 501, 503) or isinstance(said["error"], str), (status, said)


def unloaded(server: ServerProcess) -> bool:
    rows = server.post("/v2/repository/index")[1]
    return all(row.get("state", "UNAVAILABLE") == "UNAVAILABLE" for row in rows if row["name"] == NAME)
