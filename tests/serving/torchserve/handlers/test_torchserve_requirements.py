"""An archive's requirements.txt names packages and never their source: pip gets only the lines that were understood."""

import http.server
import io
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from serving.backends.environments.requirements_file import read_requirements
from serving.core.errors import Code, ServingError
from tests.support.serving_process import ServerProcess
from tests.support.torchserve_archives import archive, model

WANTED = """backend: "torchserve"
parameters { key: "torchserve.install_py_dep_per_model" value { string_value: "true" } }
"""


class _Index(http.server.BaseHTTPRequestHandler):
    """An index that nobody has allowed; or one that the administrator names. It notes who asks."""

    asked: list[str] = []

    def do_GET(self) -> None:
        self.asked.append(self.path)
        self.send_error(404)

    def log_message(self, *_: object) -> None:
        """Tests need no log of requests."""


@pytest.fixture
def index() -> Iterator[str]:
    _Index.asked = []
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Index)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join()


def wheel(name: str) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as packed:
        packed.writestr(f"{name}.py", "NAME = 'own'\n")
        info = f"{name}-1.0.dist-info"
        packed.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        packed.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        packed.writestr(f"{info}/RECORD", "")
    return content.getvalue()


ELSEWHERE = [
    *(
        "--index-url {0}/simple\nnothing",
        "--index-url={0}/simple\nnothing",
        "-i {0}/simple\nnothing",
        "-i{0}/simple\nnothing",
    ),
    *(
        "--extra-index-url {0}/simple\nnothing",
        "--extra {0}/simple\nnothing",
        "--find-links {0}\nnothing",
        "-f {0}\nnothing",
    ),
    *("--find {0}\nnothing", "--ind\\\nex-url {0}/simple\nnothing", "nothing \\\n--index-url {0}/simple"),
    *("{0}/nothing-1.0-py3-none-any.whl", "nothing @ {0}/nothing-1.0-py3-none-any.whl", "nothing@{0}/nothing.zip"),
    *("git+{0}/nothing", "nothing @ git+{0}/nothing", "-e git+{0}/nothing#egg=nothing", "--editable git+{0}/nothing"),
    *(
        "-r {0}/more.txt",
        "-c {0}/more.txt",
        "--requirement={0}/more.txt",
        "--trusted-host evil\nnothing",
        "--no-index\nnothing",
    ),
    *("# -*- coding: utf-7 -*-\n+AC0ALQ-index-url {0}/simple\nnothing", "nothing\x0b--index-url {0}/simple"),
    *(
        "nothing\u2028--index-url {0}/simple",
        "nothing --index-url={0}/simple",
        "nothing --config-settings=a=b",
        "${{PIP_INDEX_URL}}",
    ),
    *(
        "-r ../outside.txt",
        "-r /etc/hostname",
        "-c ../outside.txt",
        "../outside.whl",
        "/tmp/outside.whl",
        "file:///tmp/x.whl",
    ),
    *(
        "sub/../../outside.whl",
        "-r sub/../../outside.txt",
        ".\\..\\outside.whl",
        "//127.0.0.1/x.whl",
        "-e .",
        "--editable=.",
    ),
]


def test_no_line_leads_pip_to_another_place(tmp_path: Path, index: str) -> None:
    """One real server loads an archive for each way; the last goes where the administrator's environment says."""
    for number, text in enumerate(ELSEWHERE):
        files = {"requirements.txt": text.format(index)}
        model(tmp_path, f"evil{number}", pbtxt=WANTED, requirementsFile="requirements.txt", files=files)
    model(
        tmp_path, "named", pbtxt=WANTED, requirementsFile="requirements.txt", files={"requirements.txt": "nothing-here"}
    )
    environment = {"PIP_INDEX_URL": f"{index}/administrator", "PIP_RETRIES": "0"}
    with ServerProcess(tmp_path, "--model-control-mode=explicit", environment=environment) as server:
        for number, text in enumerate(ELSEWHERE):
            status, answer = server.post(f"/v2/repository/models/evil{number}/load")
            assert (status, "requirements.txt of the archive, line " in answer["error"]) == (400, True), (text, answer)
        assert _Index.asked == []
        assert server.post("/v2/repository/models/named/load")[0] == 400
    assert set(_Index.asked) == {"/administrator/nothing-here/"}


def test_a_refused_line_is_named_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("numpy\n\n--extra-index-url http://evil/simple\n")
    with pytest.raises(ServingError) as caught:
        read_requirements(tmp_path / "requirements.txt", tmp_path)
    assert caught.value.code is Code.INVALID_ARG
    assert caught.value.message == (
        "requirements.txt of the archive, line 3 ('--extra-index-url http://evil/simple'): expected packages by name or files "
        "of the archive: the server's environment (PIP_INDEX_URL) or pip.conf sets where packages come from"
    )


def test_usual_requirements_are_passed_on(tmp_path: Path) -> None:
    (tmp_path / "own-1.0-py3-none-any.whl").write_bytes(wheel("own"))
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "base.txt").write_text("Jinja2~=3.1\n-r ../requirements.txt\n")
    (tmp_path / "bounds.txt").write_text("numpy<3\n")
    digest = "sha256:" + "ab" * 32
    lines = [
        *(
            "\ufeff# what it needs",
            "numpy",
            "torch>=2.0,<3  # newer",
            "scikit-learn == 1.5.*",
            "uvicorn[standard]>=0.30",
        ),
        *('tomli; python_version < "3.11"', f"pillow==10.0.0 \\\n    --hash={digest} \\\n    --hash={digest}", "--pre"),
        *("--no-binary=:all:", "-r more/base.txt", "-c bounds.txt", "./own-1.0-py3-none-any.whl", "foo (>=1.0)"),
    ]
    (tmp_path / "requirements.txt").write_text("\r\n".join(lines))
    found = read_requirements(tmp_path / "requirements.txt", tmp_path)
    assert found.constraints == ["numpy<3"]
    assert found.packages == [
        *(
            "numpy",
            "torch>=2.0,<3",
            "scikit-learn == 1.5.*",
            "uvicorn[standard]>=0.30",
            'tomli; python_version < "3.11"',
        ),
        *(f"pillow==10.0.0     --hash={digest}     --hash={digest}", "--pre", "--no-binary=:all:"),
        *((tmp_path / "own-1.0-py3-none-any.whl").resolve().as_uri(), "foo (>=1.0)", "Jinja2~=3.1"),
    ]


def test_a_module_of_the_archive_does_not_stand_for_pip(tmp_path: Path) -> None:
    files = {
        "requirements.txt": "./slipway_own-1.0-py3-none-any.whl\n",
        "slipway_own-1.0-py3-none-any.whl": wheel("slipway_own"),
        "pip.py": f"open({str(tmp_path / 'ran')!r}, 'w').close()\n",
    }
    handler = "from slipway_own import NAME\n\ndef handle(data, context):\n    return data and [NAME] * len(data)\n"
    model(tmp_path / "models", "own", pbtxt=WANTED, requirementsFile="requirements.txt", files=files, handler=handler)
    unpacked = tmp_path / "models" / "folder" / "1"  # and one that is kept as a folder
    unpacked.mkdir(parents=True)
    packed = archive(tmp_path / "folder.mar", requirementsFile="requirements.txt", files=files, handler=handler)
    with zipfile.ZipFile(packed) as content:
        content.extractall(unpacked / "model.mar")
    (unpacked.parent / "config.pbtxt").write_text(WANTED)
    with ServerProcess(tmp_path / "models") as server:
        for name in ("own", "folder"):
            assert server.get(f"/v2/models/{name}/ready")[0] == 200
    assert not (tmp_path / "ran").exists()
