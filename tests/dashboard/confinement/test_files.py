"""A program reads what it was given and writes its own folder; every other file stays as it is, and unread."""

import os
import sys
from pathlib import Path

import pytest

from dashboard.confinement.promises import Promise
from tests.dashboard.confinement.conftest import Confined, needs

pytestmark = needs(Promise.READS, Promise.WRITES)


def state(path: Path) -> tuple[int, ...]:
    """All of a file's state that reading it does not change."""
    found = path.stat()
    return (
        found.st_mode,
        found.st_uid,
        found.st_gid,
        found.st_nlink,
        found.st_size,
        found.st_mtime_ns,
        found.st_ctime_ns,
    )


def test_a_program_reads_and_writes_its_folder(confined: Confined) -> None:
    code = """
import os, shutil
os.mkdir("a")
open("a/file", "w").write("text")
os.rename("a/file", "moved")
shutil.copy2("moved", "copy")
os.chmod("copy", 0o600)
print(open("copy").read(), sorted(os.listdir(".")))
os.remove("moved"); os.rmdir("a")
"""
    assert confined.run(code).sentence == ""
    assert confined.lines == ["text ['a', 'copy', 'moved']"]


def test_a_program_reads_what_it_was_given_and_does_not_write_it(confined: Confined, outside: Path) -> None:
    ended = confined.run(
        f"print(open('{outside}/secret').read(), flush=True); open('{outside}/secret', 'a')", reads=[outside]
    )
    assert confined.lines[0] == "secret"
    assert "write its own folder alone" in ended.sentence


@pytest.mark.parametrize(
    "path", ["/etc/passwd", "/etc/shadow", "/root/.bashrc", "/proc/1/environ", "/proc/{pid}/environ"]
)
def test_files_of_the_system_stay_unread(confined: Confined, path: str) -> None:
    ended = confined.run(f"print(open({path.format(pid=os.getpid())!r}).read())")
    assert ended.status == 1
    assert "Error" in ended.sentence
    assert "PATH" not in "".join(confined.lines)


def test_folders_of_the_system_are_not_listed(confined: Confined, outside: Path) -> None:
    code = """
import os
for folder in ("/", "/etc", "/proc", "/home", "/tmp", "/dev", FOLDER):
    try: print(folder, os.listdir(folder))
    except OSError: pass
"""
    assert confined.run(code.replace("FOLDER", repr(str(outside)))).sentence == ""
    assert confined.lines == []


@pytest.mark.parametrize(
    "act",
    [
        "print(open(secret).read())",
        "open(secret, 'w')",
        "open(secret, 'a')",
        "os.open(secret, os.O_RDONLY | os.O_TRUNC)",
        "os.truncate(secret, 0)",
        "open(folder + '/new', 'w')",
        "os.mkdir(folder + '/new')",
        "os.remove(secret)",
        "os.rename(secret, 'mine')",
        "os.rename('own', secret)",
        "os.link(secret, 'mine')",
        "os.link('own', folder + '/new')",
        "os.symlink(secret, 'mine'); open('mine').read()",
        "os.symlink(secret, 'mine'); open('mine', 'w')",
        "os.symlink('own', folder + '/new')",
        "os.mkfifo('pipe')",
        "os.mknod('device', 0o600 | stat.S_IFCHR, os.makedev(1, 3))",
        "os.chroot('.')",
        "os.chdir(folder); open('secret')",
        "os.execv(secret, ['x'])",
        "subprocess.run(['/bin/sh', '-c', f'cat {secret} || exit 1'], check=True)",
        "open('/proc/self/root' + secret)",
    ],
)
def test_nothing_outside_is_read_or_changed(confined: Confined, outside: Path, act: str) -> None:
    (confined.folder / "own").write_text("own")
    before = state(outside / "secret")
    prepared = f"import os, stat, subprocess\nfolder = {str(outside)!r}\nsecret = folder + '/secret'\n"
    ended = confined.run(prepared + act)
    assert ended.status == 1, confined.lines
    assert "secret" not in confined.lines
    assert [path.name for path in outside.iterdir()] == ["secret"]
    assert (outside / "secret").read_text() == "secret"
    assert state(outside / "secret") == before


@pytest.mark.parametrize(
    "act",
    [
        "os.chmod(secret, 0)",
        "os.chmod(folder, 0)",
        "os.utime(secret, (1, 1))",
        "os.chown(secret, 1000, 1000)",
        "os.setxattr(secret, 'user.mark', b'x')",
        "subprocess.run(['chmod', '0', secret])",
    ],
)
def test_modes_times_and_owners_outside_stay(confined: Confined, outside: Path, act: str) -> None:
    """These calls seem to succeed, because tools make them for their own files as well."""
    for path in (outside, outside / "secret"):
        if confined.uid is not None:
            os.chown(path, confined.uid, confined.uid)
    before = (state(outside / "secret"), state(outside))
    prepared = f"import os, subprocess\nfolder = {str(outside)!r}\nsecret = folder + '/secret'\n"
    confined.run(prepared + act)
    assert (state(outside / "secret"), state(outside)) == before
    assert os.listxattr(outside / "secret") == []


def test_a_link_that_was_there_does_not_lead_out(confined: Confined, outside: Path) -> None:
    (confined.folder / "link").symlink_to(outside / "secret")
    assert confined.run("open('link')").status == 1


def test_no_descriptor_of_the_dashboard_is_open(own: Confined, outside: Path) -> None:
    with (outside / "secret").open() as file:
        os.set_inheritable(file.fileno(), True)
        own.run("import os\nprint([name for name in range(3, 1000) if os.path.exists(f'/proc/self/fd/{name}')])")
    assert own.lines == ["[]"]


def test_the_environment_is_the_given_one(own: Confined, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLIPWAY_SECRET_KEY", "secret")
    own.run("import os\nprint(sorted(set(os.environ) - {'LC_CTYPE'}))")
    assert own.lines == ["['MARK', 'PATH']"]


def test_libraries_with_native_code_load(own: Confined) -> None:
    ended = own.run(
        f"import sys; sys.path.append({str(Path(sys.prefix))!r}); import numpy, ssl, sqlite3; print(numpy.ones(2))"
    )
    assert ended.sentence == ""
    assert own.lines == ["[1. 1.]"]
