"""Archives whose table of contents, or whose headers, are larger than their files: refused before they fill the memory."""

import gzip
import io
import json
import random
import struct
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from repository.core.errors import InvalidArchive, UnsafeArchive
from repository.files import archive
from repository.files.tar_reading import opened_tar
from repository.torchserve import model_archive
from repository.torchserve.model_archive import MANIFEST
from tests.support.serving_process import ROOT

ENTRIES = 1_000_000
END = struct.Struct("<4s4H2LH")
END64 = struct.Struct("<4sQ2H2L4Q")
LOCATOR64 = struct.Struct("<4sLQL")
ENTRY = struct.Struct("<4s6H3L5H2L")


def zip_of(path: Path, entries: int, *, claimed: int | None = None, claimed_bytes: int | None = None) -> Path:
    """Write a zip file of empty files, whose end record claims another number of entries, or another length of its table."""
    names = (f"{number:07}".encode() for number in range(entries))
    table = b"".join(
        ENTRY.pack(b"PK\1\2", 20, 20, 0, 0, 0, 0, 0, 0, 0, len(name), 0, 0, 0, 0, 0, 0) + name for name in names
    )
    count = entries if claimed is None else claimed
    length = len(table) if claimed_bytes is None else claimed_bytes
    with path.open("wb") as file:
        file.write(b"PK\3\4" + bytes(26))  # one local header, to which every entry points
        start = file.tell()
        file.write(table)
        if count > 0xFFFF:
            end = file.tell()
            file.write(END64.pack(b"PK\6\6", 44, 45, 45, 0, 0, count, count, length, start))
            file.write(LOCATOR64.pack(b"PK\6\7", 0, end, 1))
            count, length, start = 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF
        file.write(END.pack(b"PK\5\6", 0, 0, count, count, length, start, 0))
    return path


MEASURED = """
import sys
from pathlib import Path
from repository.core.errors import RepositoryError
from repository.files import archive
from repository.torchserve import model_archive
path, what = Path(sys.argv[1]), sys.argv[2]
def most():  # KiB that it had, and none of its parent
    return int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])
before = most()
try:
    archive.extract(path, path.parent / "out") if what == "extract" else model_archive.read_archive(path)
except RepositoryError as error:
    print(most() - before, error.message)
"""


def refused(path: Path, what: str) -> tuple[int, str]:
    """(MiB that it took, why it was refused) in a process of its own."""
    done = subprocess.run([sys.executable, "-c", MEASURED, path, what], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    taken, _, said = done.stdout.strip().partition(" ")
    return int(taken or 0) >> 10, said


@pytest.mark.parametrize("what", ["extract", "read"])
@pytest.mark.parametrize("claimed", [None, 3], ids=["an honest record", "a record that claims three"])
def test_a_zip_of_a_million_entries_is_refused_before_it_is_read(
    tmp_path: Path, what: str, claimed: int | None
) -> None:
    taken, said = refused(zip_of(tmp_path / "model.mar", ENTRIES, claimed=claimed), what)
    assert said == "the archive holds more than 10000 files"
    assert taken < 40


def test_a_table_of_just_too_many_entries_is_counted_whatever_its_end_claims(tmp_path: Path) -> None:
    path = zip_of(tmp_path / "model.zip", 10_001, claimed=1)
    with pytest.raises(UnsafeArchive, match="more than 10000 files"):
        archive.extract(path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("length", [46, 5399, 1 << 20, 1 << 31])
def test_an_end_record_that_lies_about_the_length_of_its_table_is_refused(tmp_path: Path, length: int) -> None:
    path = zip_of(tmp_path / "model.zip", 100, claimed_bytes=length)
    with pytest.raises(UnsafeArchive, match=r"damaged|more than 10000 files"):
        archive.extract(path, tmp_path / "out")


def test_an_archive_of_as_many_files_as_allowed_is_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "model.zip"
    with zipfile.ZipFile(path, "w") as file:
        for number in range(50):
            file.writestr(f"{number}.txt", b"")
    assert len(archive.extract(path, tmp_path / "out", archive.Limits(max_files=50))) == 50
    with pytest.raises(UnsafeArchive, match="more than 49 files"):
        archive.extract(path, tmp_path / "other", archive.Limits(max_files=49))


def test_extra_fields_that_are_read_in_quadratic_time_are_refused(tmp_path: Path) -> None:
    extra = b"XX\0\0" * 16_000
    entry = ENTRY.pack(b"PK\1\2", 20, 20, 0, 0, 0, 0, 0, 0, 0, 1, len(extra), 0, 0, 0, 0, 0) + b"a" + extra
    path = tmp_path / "model.zip"
    table = entry * 150
    path.write_bytes(table + END.pack(b"PK\5\6", 0, 0, 150, 150, len(table), 0, 0))
    with pytest.raises(UnsafeArchive, match="extra fields of more than 4 KiB"):
        archive.extract(path, tmp_path / "out")


def test_an_entry_that_asks_for_a_dictionary_of_gigabytes_is_refused(tmp_path: Path) -> None:
    """Half a kilobyte would take 2 GiB of memory."""
    path = tmp_path / "model.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as file:
        file.writestr("a", bytes(100_000))
    content = bytearray(path.read_bytes())
    content[30 + 1 + 4 + 1 : 30 + 1 + 4 + 5] = (0x7FFFFFFF).to_bytes(4, "little")  # behind the local header and its own
    path.write_bytes(content)
    taken, said = refused(path, "extract")
    assert taken < 40
    assert said == "'a' is packed by a method that is not taken: pack the archive by Deflate"


# -- tar ---------------------------------------------------------------------------------------------------------------
def header(kind: bytes, size: int, name: str = "header") -> bytes:
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, size
    return info.tobuf(tarfile.GNU_FORMAT)


def tar_with(path: Path, begins: list[bytes], zeros: int = 0) -> Path:
    """Write a packed tar file with some bytes and then many zeros before a manifest."""
    manifest = json.dumps({"model": {"modelName": "x", "handler": "image_classifier"}}).encode()
    with gzip.open(path, "wb", compresslevel=1) as file:
        for part in begins:
            file.write(part)
        for _ in range(zeros >> 20):
            file.write(bytes(1 << 20))
        content = io.BytesIO()
        with tarfile.open(fileobj=content, mode="w") as packed:
            info = tarfile.TarInfo(MANIFEST)
            info.size = len(manifest)
            packed.addfile(info, io.BytesIO(manifest))
        file.write(content.getvalue())
    return path


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK])
def test_a_header_of_a_tar_entry_that_unpacks_to_half_a_gigabyte_is_refused(tmp_path: Path, kind: bytes) -> None:
    path = tar_with(tmp_path / "model.tar.gz", [header(kind, 512 << 20)], 512 << 20)
    assert path.stat().st_size < 4 << 20
    taken, said = refused(path, "read")
    assert "headers of more than 1 MiB" in said
    assert taken < 40


def test_a_chain_of_headers_without_an_entry_is_refused(tmp_path: Path) -> None:
    path = tar_with(tmp_path / "model.tar.gz", [header(tarfile.XGLTYPE, 0)] * 5000)
    with pytest.raises(UnsafeArchive, match=r"too many headers|headers of more"):
        model_archive.read_archive(path)


def attributes(body: bytes, kind: bytes = tarfile.XHDTYPE) -> bytes:
    return header(kind, len(body)) + body + bytes(-len(body) % 512)


def record(key: bytes, value: bytes) -> bytes:
    """A record of attributes, with its own length in front."""
    length = len(key) + len(value) + 3
    while len(str(length)) + len(key) + len(value) + 3 != length:
        length += 1
    return b"%d %s=%s\n" % (length, key, value)


def tar_of(path: Path, content: bytes) -> Path:
    """Write a packed tar file: what is given, and its end."""
    path.write_bytes(gzip.compress(content, 1) + gzip.compress(bytes(1024)))
    return path


@pytest.mark.parametrize(
    "body",
    [b"1" * (1 << 19), b"3 \n" * 150_000 + b"=", record(b"comment", b"1" * (1 << 19))],
    ids=["digits", "records without a value", "a value of digits"],
)
def test_attributes_are_read_in_linear_time(tmp_path: Path, body: bytes) -> None:
    """Half a megabyte of each took `tarfile` minutes, and hours."""
    path = tar_of(tmp_path / "model.mar", attributes(body) + header(tarfile.REGTYPE, 0))
    with pytest.raises(InvalidArchive):
        model_archive.read_archive(path)


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.XGLTYPE], ids=["of one", "of all that follow"])
def test_headers_before_many_entries_are_not_kept(tmp_path: Path, kind: bytes) -> None:
    noise = random.Random(1).randbytes(2 << 20)  # lest it unpacks to too many times its size
    entries = (
        attributes(record(b"c%05d" % number, b"a" * 150_000), kind) + header(tarfile.REGTYPE, 0, f"f{number}")
        for number in range(1000)
    )
    content = header(tarfile.REGTYPE, len(noise), "noise") + noise + b"".join(entries)
    taken, said = refused(tar_of(tmp_path / "model.mar", content), "read")
    assert said.startswith("the archive has no MAR-INF/MANIFEST.json")
    assert taken < 60


def test_headers_before_entries_count_by_their_unpacked_size(tmp_path: Path) -> None:
    one = attributes(record(b"c", b"a" * 900_000))
    path = tar_of(tmp_path / "model.mar", b"".join(one + header(tarfile.REGTYPE, 0, f"f{n}") for n in range(60)))
    with pytest.raises(UnsafeArchive, match="unpacks to more than 200 times its size"):
        model_archive.read_archive(path)


@pytest.mark.parametrize("size", [b"-0000000001\0", b"\xff" * 10 + b"\xfe\0"], ids=["in text", "in binary"])
def test_a_size_below_zero_is_refused(tmp_path: Path, size: bytes) -> None:
    entry = bytearray(header(tarfile.REGTYPE, 0))
    entry[124:136] = size
    entry[148:156] = b"%06o\0 " % (sum(entry[:148]) + 256 + sum(entry[156:]))
    with pytest.raises(InvalidArchive):
        model_archive.read_archive(tar_of(tmp_path / "model.mar", bytes(entry) * 3))


def test_names_sizes_and_times_of_python_and_pax_are_read(tmp_path: Path) -> None:
    names = ["é" * 90 + "/" + "x" * 120, "plain", "folder/" + "y" * 200]
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz", format=tarfile.PAX_FORMAT, pax_headers={"comment": "all"}) as file:
        for name in names:
            info = tarfile.TarInfo(name)
            info.size, info.mtime, info.pax_headers = 3, 1.5, {"size": "3", "SCHILY.xattr.user.x": "y" * 3000}
            file.addfile(info, io.BytesIO(b"abc"))
    with opened_tar(tmp_path / "a.tar.gz") as packed:
        found = [(one.name, one.size, one.mtime, packed.content(one).read()) for one in packed.members()]
    assert found == [(name, 3, 1.5, b"abc") for name in names]


def test_a_name_that_no_file_can_have_is_refused(tmp_path: Path) -> None:
    path = tar_of(tmp_path / "model.mar", attributes(record(b"path", b"a" * 5000)) + header(tarfile.REGTYPE, 0))
    with pytest.raises(UnsafeArchive, match="a name that is too long"):
        model_archive.read_archive(path)


def test_a_sparse_file_of_pax_is_refused_in_a_sentence(tmp_path: Path) -> None:
    path = tar_of(
        tmp_path / "model.mar", attributes(record(b"GNU.sparse.major", b"1")) + header(tarfile.REGTYPE, 0, "s")
    )
    with pytest.raises(UnsafeArchive, match="'s' in the archive is a sparse file: pack it without --sparse"):
        model_archive.read_archive(path)


def test_a_map_of_a_sparse_file_without_end_is_refused(tmp_path: Path) -> None:
    sparse = bytearray(header(tarfile.GNUTYPE_SPARSE, 0))
    sparse[482] = 1  # another block of the map follows
    more = bytearray(b"00000000001\0" * 42 + bytes(8))
    more[504] = 1
    sparse[148:156] = b"%06o\0 " % (sum(sparse[:148]) + 256 + sum(sparse[156:]))
    path = tar_with(tmp_path / "model.tar.gz", [bytes(sparse), bytes(more) * 4000])
    with pytest.raises(UnsafeArchive, match="is a sparse file"):
        model_archive.read_archive(path)


@pytest.mark.parametrize("ending", ["bz2", "gz", "xz"])
def test_a_packed_tar_file_that_is_damaged_is_refused_in_a_sentence(tmp_path: Path, ending: str) -> None:
    path = tmp_path / "model.mar"
    with tarfile.open(path, f"w:{ending}") as packed:  # type: ignore[call-overload]
        info = tarfile.TarInfo("data")
        info.size = 100_000
        packed.addfile(info, io.BytesIO(random.Random(1).randbytes(info.size)))
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    content[len(content) // 2 + 1] ^= 0xFF
    path.write_bytes(bytes(content))
    with pytest.raises(InvalidArchive):
        model_archive.read_archive(path)
