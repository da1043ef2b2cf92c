"""Files that are data in any place: their content has to fit their name."""

import io
import json
import pickle
import pickletools
import struct
import zipfile
from pathlib import Path

import pytest

from repository.config import model_config
from repository.files import code_execution, data_files
from repository.files.data_files import DataFiles


class Payload:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        import os

        return os.system, ("id",)


def zipped(before: bytes = b"", **files: str) -> bytes:
    content = io.BytesIO()
    content.write(before)
    with zipfile.ZipFile(content, "a") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return content.getvalue()


def pieces(*words: str, more: bytes = b"") -> bytes:
    """A vocabulary as SentencePiece writes it: a message for each piece with its text and score."""
    inner = [b"\x0a" + bytes((len(word),)) + word.encode() + b"\x15" + struct.pack("<f", -1) for word in words]
    return b"".join(b"\x0a" + bytes((len(one),)) + one for one in inner) + more


def safetensors(
    header: bytes = b'{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}', numbers: bytes = bytes(4)
) -> bytes:
    return len(header).to_bytes(8, "little") + header + numbers


def text_tar(name: bytes) -> bytes:
    """A header of tar without a control character, as old ones are."""
    fields = name.ljust(100, b"x") + b"0000644 0000000 0000000 00000000000 00000000000 "
    rest = b"0".ljust(356, b" ")
    return fields + b"%06o  " % (sum(fields) + sum(rest) + 8 * 32) + rest


def pickle_around_weights() -> bytes:
    """A pickle whose strings step over the header's length, then over its text, to the numbers."""
    length = 0x55 + (250 << 8)  # "U", a string of 250 bytes
    steps = b"x" * 242 + (b"U~" + b"x" * 126) * 500
    header = b'{"' + steps[: length - 6] + b'":1}'
    content = safetensors(header, b"x" * (244 + 499 * 128 - length) + TEXT_PICKLE)
    assert any(step.name == "REDUCE" for step, _, _ in pickletools.genops(content))
    return content


TOKENIZER = json.dumps({"version": "1.0", "model": {"vocab": {'"x" (#!)': 1, "é\n": -2.5e3}, "merges": [None, True]}})
PYTHON = b"import os\nos.system('id')\n"
TEXT_PICKLE = b"cos\nsystem\n(S'id'\ntR."
PNG = b"\x89PNG\r\n\x1a\n" + bytes(40)

DATA = {
    "config.json": b"{}",
    "tokenizer.json": TOKENIZER.encode(),
    "vocab.json": json.dumps(TOKENIZER, indent=1).join(("[", "]")).encode(),
    "generation.json": b' {"a": NaN, "b": -Infinity}\n',
    "merges.txt": "#version: 0.2\nĠ t\nh e\n( )\n".encode(),
    "vocab.txt": b"[PAD]\n[unused0]\n[UNK]\ncat\ndog\nimport\n(\n)\n##s\n",
    "words.txt": b"cat\ndog\nelephant\nprint\n(\nx\n)\n",
    "many.vocab": b"<unk>\t0\n" + b"".join(b"word%d\t-%d\n" % (number, number) for number in range(20_000)) + b"(\t1\n",
    "README.md": b"# Model\n\n```python\nimport os\nmodel(x)\n```\n",
    "LICENSE": b"Permission is granted (free of charge)\n",
    "table.csv": b"a,b\n1,2\n",
    "cifar10.txt": b"airplane\nautomobile\nbird\ncat\ndeer\ndog\nfrog\nhorse\nship\ntruck\n",
    "animals.txt": b"cat\ndog\nbird\n",
    "ids.txt": b"cat: 0\ndog: 1\n",
    "settings.txt": b"size = 3\nname = cat\n",
    "names.txt": b"cat(1)\nfor\nthe dog\n",
    "long.json": b'["' + b"x" * (3 << 20) + b'", 1e5, ' + b'-0.125e+3, "a", true,' * 200_000 + b"null]",
    "a.gif": b"GIF89a\x10\0\x10\0\x80\0\0" + bytes(30),
    "rows.jsonl": b'{"a": 1}\n{"a": 2}\n',
    "spiece.model": pieces("the", "cat", more=b"\x12\x02\x18\x01"),
    "a.png": PNG,
    "b.jpg": b"\xff\xd8\xff\xe0" + bytes(30),
    "c.webp": b"RIFF\0\0\0\0WEBP",
    "model.safetensors": safetensors(),
    "deep/er/Config.JSON": b"[]",
}
HOSTILE = {
    "a pickle": ("config.json", pickle.dumps(Payload())),
    "a pickle of text": ("config.json", pickle.dumps(Payload(), protocol=0)),
    "a pickle of text called text": ("vocab.txt", TEXT_PICKLE),
    "a pickle that goes on badly": ("vocab.txt", TEXT_PICKLE[:-1] + b"\n\n"),
    "a pickle behind many steps": ("vocab.txt", b"N0" * 5000 + TEXT_PICKLE),
    "a zip": ("config.json", zipped(a="b")),
    "a zip behind JSON": ("config.json", zipped(b"{}", a="b")),
    "a zip behind text": ("README.md", zipped(b"# Read me\n", a="b")),
    "a zip behind a picture": ("a.png", zipped(PNG, **{"__main__.py": "print()"})),
    "a zip behind weights": ("m.safetensors", zipped(safetensors(), **{"__main__.py": "print()"})),
    "a zip in a vocabulary": ("spiece.model", pieces("a") + b"\x0a\x7f" + zipped(a="b").ljust(127, b"\0")),
    "a library": ("config.json", b"\x7fELF\x02" + bytes(60)),
    "a library called a picture": ("a.jpg", b"\x7fELF\x02" + bytes(60)),
    "a library called a vocabulary": ("tokenizer.model", b"\x7fELF\x02" + bytes(60)),
    "Python": ("config.json", PYTHON),
    "Python that begins as JSON": ("config.json", b'[__import__("os").system("id")]'),
    "Python in braces": ("config.json", b'{"a": exec("1")}'),
    "a number": ("config.json", b"1"),
    "nothing": ("config.json", b""),
    "control characters in a string": ("config.json", b'{"a": "\x01"}'),
    "not UTF-8": ("config.json", b'{"a": "\x80"}'),
    "Python called text": ("notes.txt", PYTHON),
    "Python called Markdown": ("README.md", b'"""A page."""\nopen("x", "w")\n'),
    "Python behind a long text": ("notes.txt", b'"""' + b"words\n" * 20_000 + b'"""\n' + PYTHON),
    "Python behind many names": ("notes.txt", b"a\n" * 50_000 + PYTHON),
    "a script": ("vocab.txt", b"#!/bin/sh\nid\n"),
    "a script called a licence": ("LICENSE", b"#!/bin/sh\nid\n"),
    "weights whose header is a pickle": ("m.safetensors", safetensors(pickle.dumps(Payload()))),
    "weights whose header is longer than they are": ("m.safetensors", (1 << 40).to_bytes(8, "little") + b"{}"),
    "a pickle that imports from the stack": ("vocab.txt", b"Vos\nVsystem\nq\xc2\x93(S'id'\ntR."),
    "a pickle with a number in hexadecimal": ("vocab.txt", b"I0x10\n0" + TEXT_PICKLE),
    "a pickle with bytes that are no ASCII": ("vocab.txt", "S'é'\n0".encode() + TEXT_PICKLE),
    "a pickle behind another": ("vocab.txt", b"I1\n." + TEXT_PICKLE),
    "a pickle called a picture": ("a.gif", b"GIF89a\x01\0\x010" + TEXT_PICKLE),
    "a pickle around weights": ("m.safetensors", pickle_around_weights()),
    "Python called a picture": ("a.gif", b"GIF89a=1\nimport os\n"),
    "Python that replaces what brackets do": ("notes.txt", b"exit.__class__.__getitem__ = exec\nexit['id']\n"),
    "Python whose class is what brackets do": ("notes.txt", b"class A:\n __class_getitem__ = exec\nA['id']\n"),
    "Python that replaces in a loop": ("notes.txt", b"for a.b in c,: d\n"),
    "Python in UTF-7": ("notes.txt", b"# coding: utf-7\nprint+ACg-1+ACk-\n"),
    "Python in escapes": ("notes.txt", b"\r#vim: set fileencoding=unicode_escape\nprint\\x281\\x29\n"),
    "Python that nests deeply": ("notes.txt", b"exec(1)" + b"+1" * 20_000),
    "a tar file of text": ("notes.txt", text_tar(b"notes")),
    "a tar file that begins as JSON": ("config.json", text_tar(b'{"') + b'"}'),
    "a vocabulary of more pieces than any has": ("spiece.model", b"\x0a\0" * 600_000),
    "an ending that nobody proves": ("weights.bin", b"{}"),
    "a template": ("chat_template.jinja", b"{{ x }}"),
    "no ending": ("config", b"{}"),
}


@pytest.mark.parametrize("name", DATA)
def test_files_that_tools_write_beside_a_model_are_data(name: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(DATA[name])
    assert DataFiles().has(name, tmp_path / "file")


@pytest.mark.parametrize("what", HOSTILE)
def test_a_name_alone_makes_no_data(what: str, tmp_path: Path) -> None:
    name, content = HOSTILE[what]
    (tmp_path / "file").write_bytes(content)
    assert not DataFiles().has(name, tmp_path / "file")


def test_the_bytes_that_one_question_reads_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_files, "_READ_BYTES", 100)
    (tmp_path / "a.json").write_text("[" + " " * 40 + "]")
    files = DataFiles()
    assert [files.has("a.json", tmp_path / "a.json") for _ in range(3)] == [True, True, False]


@pytest.mark.parametrize("end", ["json", "txt", "spiece.model"])
def test_a_text_too_long_to_be_read_is_not_known_to_be_data(end: str, tmp_path: Path) -> None:
    with (tmp_path / "large").open("wb") as file:
        file.truncate((64 << 20) + 1)
    assert not DataFiles().has(f"x.{end}", tmp_path / "large")


@pytest.mark.parametrize(
    "unit",
    [
        b'{"a":',
        b'"\\',
        b"[[",
        b"-1e",
        b"\\u",
        b"(",
        b"f'{",
        b"a=",
        b"N0",
        b"not ",
        b"@a\n",
        b"\x0a\x01",
        b"\xe2\x82\xac",
    ],
)
def test_a_proof_takes_time_in_proportion(unit: bytes, tmp_path: Path) -> None:
    """A megabyte of each would take hours, were it quadratic."""
    for name in ("a.json", "a.txt", "spiece.model"):
        (tmp_path / name).write_bytes(b"[" * name.endswith("json") + unit * (1_000_000 // len(unit)))
        DataFiles().has(name, tmp_path / name)


def test_they_lie_beside_an_onnx_model_and_beside_its_versions(tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "model.onnx").write_bytes(b"\x08\x08\x12\x04onnx")
    for name in ("config.json", "vocab.txt"):
        (tmp_path / "1" / name).write_bytes(DATA[name])
        (tmp_path / name).write_bytes(DATA[name])
    (tmp_path / "1" / "bad.json").write_bytes(PYTHON)
    beside = {"config.json": tmp_path / "config.json", "vocab.txt": tmp_path / "vocab.txt"}
    onnx = model_config.parse('backend: "onnxruntime"')
    assert [one.where for one in code_execution.could_run(onnx, 1, tmp_path / "1", beside)] == ["1/bad.json"]
    # What a handler makes of the files beside its versions is its own matter.
    found = code_execution.could_run(onnx, 1, tmp_path / "1", beside, code_runs=True)
    assert {"config.json", "vocab.txt"} <= {one.where for one in found}
