"""EXECUTION_ENV_PATH: a model's own Python, as a folder, as its python, or packed."""

import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import venv
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from serving.backends.environments import packed_environment
from serving.backends.environments.packed_environment import ENVIRONMENTS
from serving.core.errors import Code, ServingError
from tests.serving.instances import IDENTITY, infer, python_instance
from tests.support.serving_process import ROOT


def environment(path: str) -> str:
    return f'parameters {{ key: "EXECUTION_ENV_PATH" value {{ string_value: {json.dumps(path)} }} }}'


@pytest.fixture
def own_environment(tmp_path) -> Path:
    """A virtual environment inside the model's folder that sees numpy alone, and a package of its own."""
    folder = tmp_path / "model" / "env"
    venv.create(folder, with_pip=False, symlinks=True)
    packages = next(folder.glob("lib/python*/site-packages"))
    installed = Path(np.__file__).parent
    for name in ("numpy", "numpy.libs"):
        if (installed.parent / name).exists():
            (packages / name).symlink_to(installed.parent / name)
    (packages / "only_here.py").write_text("WHERE = 'own environment'\n")
    return folder


REPORT = """
    import importlib.util
    import sys
    import only_here
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            texts = np.array([only_here.WHERE, sys.prefix, str(importlib.util.find_spec("orjson"))], object)
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", texts)]) for _ in requests]
"""


@pytest.mark.parametrize("path", ["$$TRITON_MODEL_DIRECTORY/env", "$$TRITON_MODEL_DIRECTORY/env/bin/python"])
def test_a_model_may_bring_its_own_environment(tmp_path, own_environment, path):
    outputs = [("OUTPUT0", "BYTES", [-1])]
    with python_instance(tmp_path, REPORT, outputs=outputs, extra=environment(path)) as instance:
        texts = [text.decode() for text in infer(instance, np.ones((1, 1), np.float32))["OUTPUT0"]]
    assert texts == ["own environment", str(own_environment), "None"]


def test_an_environment_without_numpy_says_so(tmp_path):
    venv.create(tmp_path / "model" / "env", with_pip=False, symlinks=True)
    extra = environment("$$TRITON_MODEL_DIRECTORY/env")
    with (
        pytest.raises(ServingError, match="No module named 'numpy'"),
        python_instance(tmp_path, IDENTITY, extra=extra),
    ):
        pass


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("$$TRITON_MODEL_DIRECTORY/env.tar.gz", "must name the folder of a Python environment"),
        ("$$TRITON_MODEL_DIRECTORY/nothing", "must name the folder of a Python environment"),
        ("/bin/sh", "is no whole tar archive"),
        ("$$TRITON_MODEL_DIRECTORY/../other", "must not lead out of the model's folder"),
    ],
)
def test_an_environment_that_cannot_be_used_is_refused(tmp_path, path, expected):
    with (
        pytest.raises(ServingError, match=expected) as error,
        python_instance(tmp_path, IDENTITY, extra=environment(path)),
    ):
        pass
    assert str(tmp_path) not in error.value.message


def test_the_servers_own_python_is_the_default(tmp_path):
    source = REPORT.replace("    import only_here\n", "").replace("only_here.WHERE", "'own'")
    with python_instance(tmp_path, source, outputs=[("OUTPUT0", "BYTES", [-1])]) as instance:
        assert infer(instance, np.ones((1, 1), np.float32))["OUTPUT0"][1].decode() == sys.prefix


# -- packed ------------------------------------------------------------------------------------------------------------
@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where environments are unpacked, for this test alone; no lock outlives it."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setenv("TMPDIR", str(folder))
    yield packed_environment.cache_folder()
    for environment in list(ENVIRONMENTS._locks):
        ENVIRONMENTS.release(environment)


WRITTEN_AT = 1e9  # long before it is packed and unpacked
# As conda-pack's: writes the folder that it lies in into what names the old one.
CONDA_UNPACK = """
import pathlib, sys
prefix = pathlib.Path(__file__).resolve().parent.parent
with (prefix / "unpacked.txt").open("a") as file:
    file.write(f"{prefix}\\n")
"""
PACKED_REPORT = """
    import json
    import os
    import sys
    import only_here
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        @staticmethod
        def auto_complete_config(config):
            config.add_output({"name": "OUTPUT0", "data_type": only_here.TYPE, "dims": [-1]})
            return config

        def execute(self, requests):
            seen = [only_here.WHERE, sys.prefix, os.environ["CONDA_PREFIX"], os.environ["ACTIVATED"], os.environ["PATH"]]
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", np.array(seen, object))]) for _ in requests]
"""


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    """env.tar.gz in the model's folder: a virtual environment with what conda-pack adds."""
    folder = tmp_path / "environment"
    venv.create(folder, with_pip=False, symlinks=True)
    packages = next(folder.glob("lib/python*/site-packages"))
    (packages / "numpy_too.pth").write_text(f"{Path(np.__file__).parents[1]}\n")
    (packages / "only_here.py").write_text("WHERE = 'packed environment'\nTYPE = 'TYPE_STRING'\n")
    os.utime(packages / "only_here.py", (WRITTEN_AT, WRITTEN_AT))
    (folder / "bin" / "conda-unpack").write_text(CONDA_UNPACK)
    (folder / "conda-meta").mkdir()
    scripts = folder / "etc" / "conda" / "activate.d"
    scripts.mkdir(parents=True)
    (scripts / "one.sh").write_text('export ACTIVATED="in $CONDA_PREFIX"\n')
    return pack(tmp_path / "model" / "env.tar.gz", lambda archive: archive.add(folder, "."))


def pack(path: Path, fill: Callable[[tarfile.TarFile], None]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as archive:
        fill(archive)
    return path


def entry(name: str, content: bytes = b"", **fields: object) -> Callable[[tarfile.TarFile], None]:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    for key, value in fields.items():
        setattr(info, key, value)
    return lambda archive: archive.addfile(info, io.BytesIO(content))


def test_a_packed_environment_is_unpacked_relocated_activated_and_used(
    tmp_path: Path, packed: Path, cache: Path
) -> None:
    extra = environment("$$TRITON_MODEL_DIRECTORY/env.tar.gz")
    for _ in range(2):  # the second time it is there
        with python_instance(tmp_path, PACKED_REPORT, outputs=[], extra=extra) as instance:
            seen = [text.decode() for text in infer(instance, np.ones((1, 1), np.float32))["OUTPUT0"]]
    [folder] = [path for path in cache.iterdir() if path.is_dir()]
    assert seen[:4] == ["packed environment", str(folder), str(folder), f"in {folder}"]
    assert seen[4].startswith(f"{folder}/bin:")
    assert (folder / "unpacked.txt").read_text() == f"{folder}\n", "relocated once"
    module = next(folder.glob("lib/python*/site-packages/only_here.py"))
    origin = next((tmp_path / "environment").glob("lib/python*/site-packages/only_here.py"))
    assert module.stat().st_mtime == origin.stat().st_mtime == WRITTEN_AT, "compiled modules are those of this source"


def test_several_servers_and_threads_unpack_it_once(packed: Path, cache: Path) -> None:
    program = f"""
from pathlib import Path
from serving.backends.environments.packed_environment import ENVIRONMENTS
print(ENVIRONMENTS.unpacked(Path({str(packed)!r})))
"""
    command = [sys.executable, "-c", program]
    others = [subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    found: list[Path] = []
    threads = [threading.Thread(target=lambda: found.append(ENVIRONMENTS.unpacked(packed))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found += [Path(other.communicate()[0].strip()) for other in others]
    assert len(found) == 6
    assert len(set(found)) == 1
    assert (found[0] / "unpacked.txt").read_text() == f"{found[0]}\n"


def test_an_environment_that_a_killed_server_left_half_unpacked_is_unpacked_again(packed: Path, cache: Path) -> None:
    folder = ENVIRONMENTS.unpacked(packed)
    ENVIRONMENTS.release(folder)
    os.truncate(f"{folder}.lock", 0)
    (folder / "half").write_text("written")
    assert ENVIRONMENTS.unpacked(packed) == folder
    assert not (folder / "half").exists()
    assert (folder / "bin" / "python").exists()


def test_one_that_was_deleted_is_unpacked_again(packed: Path, cache: Path) -> None:
    folder = ENVIRONMENTS.unpacked(packed)
    for path in sorted(folder.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
    folder.rmdir()
    assert (ENVIRONMENTS.unpacked(packed) / "bin" / "python").exists()


def test_those_that_no_server_uses_go_after_a_week(tmp_path: Path, cache: Path) -> None:
    folders = [
        ENVIRONMENTS.unpacked(pack(tmp_path / f"{name}.tar.gz", entry(f"file-{name}", b"x")))
        for name in ("used", "old", "new")
    ]
    used, old, new = folders
    for folder in (old, new):
        ENVIRONMENTS.release(folder)
    week_ago = time.time() - 8 * 86400
    for folder in (used, old):
        os.utime(f"{folder}.lock", (week_ago, week_ago))
    ENVIRONMENTS.unpacked(pack(tmp_path / "last.tar.gz", entry("file", b"x")))
    assert [folder.is_dir() for folder in folders] == [True, False, True]
    assert ENVIRONMENTS.unpacked(tmp_path / "old.tar.gz") == old
    assert old.is_dir()


HOSTILE = {
    "a name above": ([entry("../outside", b"x")], "leads out of it"),
    "a name deep above": ([entry("lib/../../outside", b"x")], "leads out of it"),
    "an absolute name": ([entry("/tmp/slipway-outside", b"x")], "leads out of it"),
    "a link out": ([entry("lib/out", type=tarfile.SYMTYPE, linkname="../../outside")], "leads out of it"),
    "an absolute link": ([entry("lib/out", type=tarfile.SYMTYPE, linkname="/etc")], "leads out of it"),
    "a file behind a link": (
        [entry("bin/python3", type=tarfile.SYMTYPE, linkname="/tmp"), entry("bin/python3/outside", b"x")],
        "has one name twice",
    ),
    "a link behind a link": (
        [
            entry("bin/python3", type=tarfile.SYMTYPE, linkname="/tmp"),
            entry("bin/python3/outside", type=tarfile.SYMTYPE, linkname="x"),
        ],
        "lies behind a link",
    ),
    "a hard link out": ([entry("shadow", type=tarfile.LNKTYPE, linkname="/etc/passwd")], "leads out of it"),
    "a hard link above": ([entry("shadow", type=tarfile.LNKTYPE, linkname="../victim")], "leads out of it"),
    "a device": ([entry("null", type=tarfile.CHRTYPE, devmajor=1, devminor=3)], "is no file, folder or link"),
    "a pipe": ([entry("pipe", type=tarfile.FIFOTYPE)], "is no file, folder or link"),
    "a name twice": ([entry("file", b"x"), entry("file", b"y")], "has one name twice"),
    "a failing conda-unpack": (
        [
            entry("bin/python", type=tarfile.SYMTYPE, linkname=sys.executable),
            entry("bin/conda-unpack", b"raise SystemExit('no prefix here')"),
        ],
        "conda-unpack of the environment failed: no prefix here",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_an_archive_that_would_write_elsewhere_or_is_odd_is_refused(tmp_path: Path, cache: Path, name: str) -> None:
    entries, expected = HOSTILE[name]
    (cache / "victim").write_text("untouched")

    def fill(archive: tarfile.TarFile) -> None:
        for add in entries:
            add(archive)

    archive = pack(tmp_path / "bad.tar.gz", fill)
    for _ in range(2):
        with pytest.raises(ServingError, match=expected) as error:
            ENVIRONMENTS.unpacked(archive)
        assert error.value.code is Code.INVALID_ARG
        assert str(tmp_path) not in error.value.message
        assert [path.name for path in cache.iterdir() if path.suffix != ".lock"] == ["victim"]
    assert not list(tmp_path.rglob("outside"))
    assert not Path("/tmp/slipway-outside").exists()
    assert (cache / "victim").read_text() == "untouched"
    assert not ENVIRONMENTS._locks


@pytest.mark.parametrize("kind", ["truncated", "zip", "text", "empty"])
def test_a_file_that_is_no_whole_tar_archive_is_refused(tmp_path: Path, kind: str) -> None:
    whole = pack(tmp_path / "env.tar.gz", entry("file", os.urandom(100_000)))
    if kind == "truncated":
        os.truncate(whole, whole.stat().st_size // 2)
    elif kind == "zip":
        with zipfile.ZipFile(whole, "w") as archive:
            archive.writestr("file", "x")
    else:
        whole.write_text("no archive" * 1000 if kind == "text" else "")
    with pytest.raises(ServingError, match="is no whole tar archive, plain or compressed by gzip, bzip2 or xz"):
        ENVIRONMENTS.unpacked(whole)


def test_an_archive_beyond_the_bounds_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_environment, "MAX_BYTES", 1000)
    with pytest.raises(ServingError, match="entries or 0 GiB"):
        ENVIRONMENTS.unpacked(pack(tmp_path / "env.tar.gz", entry("zeros", bytes(2000))))


def test_an_archive_without_a_python_is_refused_with_the_expected_layout(tmp_path: Path) -> None:
    pack(tmp_path / "model" / "env.tar.gz", entry("env/bin/python", b"x"))
    extra = environment("$$TRITON_MODEL_DIRECTORY/env.tar.gz")
    with (
        pytest.raises(ServingError, match="with bin/python in it, its python, or a packed one"),
        python_instance(tmp_path, IDENTITY, extra=extra),
    ):
        pass


def test_a_folder_for_environments_that_others_may_write_is_refused(packed: Path, cache: Path) -> None:
    cache.chmod(0o777)
    with pytest.raises(ServingError, match="is not this user's alone"):
        ENVIRONMENTS.unpacked(packed)
