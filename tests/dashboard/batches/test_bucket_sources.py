"""Files of a prefix of a bucket that an administrator allows are listed, previewed and copied."""

from pathlib import Path
from typing import Any

import pytest

from dashboard.batches.formats.table import open_table
from dashboard.batches.sources import source_copy, source_files, source_head
from dashboard.models import BatchFile
from dashboard.shared.exceptions import Forbidden, Invalid, NotFound
from tests.support.object_store import BUCKET, ObjectStore


def test_a_prefix_of_a_bucket_is_read(settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "any")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "any")
    with ObjectStore() as store:
        prefix = f"s3://127.0.0.1:{store.port}/{BUCKET}/rows"
        settings.SOURCE_BUCKETS = [prefix]
        store.put("rows/b.csv", b"a\n1\n")
        store.put("rows/a.csv", b"a\n2\n")
        store.put("rows/note.txt", b"for people")
        store.put("other/c.csv", b"a\n")
        assert [row[:2] for row in source_files(prefix)] == [("a.csv", 4), ("b.csv", 4)]
        assert [row[:2] for row in source_files(f"{prefix}/b.csv")] == [("b.csv", 4)]
        file = BatchFile(name="b.csv", size=4)
        for source in (prefix, f"{prefix}/b.csv"):
            with source_head(source, file) as head:
                assert open_table("csv", head).columns == ["a"]
            source_copy(source, file, tmp_path / "copy")
            assert (tmp_path / "copy").read_bytes() == b"a\n1\n"
        store.put("rows/b.csv", b"a\n1\n2\n")
        with pytest.raises(Invalid, match=r"'b\.csv' has changed"):
            source_copy(prefix, file, tmp_path / "copy")
        for address in (f"s3://127.0.0.1:{store.port}/{BUCKET}/other", f"{prefix}/../other", f"{prefix}2"):
            with pytest.raises(Forbidden, match="SLIPWAY_SOURCE_BUCKETS"):
                source_files(address)
        with pytest.raises(NotFound):
            source_files(f"{prefix}/none")
