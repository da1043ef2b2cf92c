"""After a restart a server knows the candidates that it has taken out."""

import json
import logging
from pathlib import Path

import pytest

from repository.core.errors import NoSpace
from repository.files import storage
from serving.traffic.breaches import Breach, Breaches
from tests.support.serving_process import wait_until

BREACH = Breach("r-1", 0, "errors: 9 % failed", 1.5)


def _kept(path: Path, model: str, breach: Breach = BREACH) -> None:
    """Breaches that were kept by a server which has ended since."""
    breaches = Breaches(path)
    breaches.keep(model, breach)
    breaches.close()


def test_a_breach_is_known_to_the_next_process(tmp_path: Path) -> None:
    path = tmp_path / "traffic.json"
    _kept(path, "chat")
    assert Breaches(path).of("chat", "r-1") == BREACH
    assert Breaches(path).of("chat", "r-2") is None, "another rollout is not held back"
    assert Breaches(path).of("other", "r-1") is None


def test_a_breach_is_forgotten_with_its_rollout(tmp_path: Path) -> None:
    path = tmp_path / "traffic.json"
    breaches = Breaches(path)
    breaches.keep("chat", BREACH)
    breaches.forget("chat")
    assert breaches.of("chat", "r-1") is None
    breaches.close()
    assert Breaches(path).of("chat", "r-1") is None


GUARDRAIL = b'{"chat": {"rollout": "r-1", "reason": "", "at": 1, "guardrail": %s}}'
AT = b'{"chat": {"rollout": "r-1", "reason": "", "guardrail": 0, "at": %s}}'
WRONG = (
    *(b"", b"[1]", b"{", b"null", b"\xff\xfe", b"[" * 100_000),
    *(b'{"chat": null}', b'{"chat": {"rollout": 3}}'),
    *(GUARDRAIL % one for one in (b"true", b"-1", b"1e400", b"9" * 30)),
    *(AT % one for one in (b"NaN", b"Infinity", b"9" * 400)),
)


@pytest.mark.parametrize("content", WRONG, ids=range(len(WRONG)))
def test_a_file_that_cannot_be_read_counts_as_empty_and_is_logged(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "traffic.json"
    path.write_bytes(content)
    with caplog.at_level(logging.ERROR):
        assert Breaches(path).of("chat", "r-1") is None
    assert str(path) in caplog.text


def test_whole_rows_of_a_damaged_file_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "traffic.json"
    _kept(path, "chat")
    path.write_text(path.read_text().replace("{", '{"other": 3, ', 1))
    assert Breaches(path).of("chat", "r-1") == BREACH


def test_a_breach_that_cannot_be_written_holds_and_is_written_when_it_can_be(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (folder := tmp_path / "file").touch()
    breaches = Breaches(folder / "traffic.json")
    assert "a restart would forget them" in caplog.text, "said when the server starts"
    breaches.keep("chat", BREACH)
    breaches.tick()
    assert breaches.of("chat", "r-1") == BREACH
    folder.unlink()
    breaches.tick()
    breaches.close()
    assert Breaches(folder / "traffic.json").of("chat", "r-1") == BREACH


def test_a_breach_is_written_though_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A full disk may be what the candidate fails for. Room is kept; the double stands for what else would be written."""

    def full(*_: object) -> None:
        raise NoSpace(1, 0)

    path = tmp_path / "traffic.json"
    breaches = Breaches(path)
    with monkeypatch.context() as patch:
        patch.setattr(storage, "write_atomic", full)
        breaches.keep("chat", BREACH)
        wait_until(lambda: Breaches(path).of("chat", "r-1") == BREACH, what="the first breach on the disk")
        breaches.keep("digits", BREACH)
        wait_until(lambda: "cannot be written" in caplog.text, what="a full disk")
    assert Breaches(path).of("digits", "r-1") is None, "there was room for one"
    breaches.tick()
    breaches.close()
    assert Breaches(path).of("digits", "r-1") == BREACH


def test_servers_with_one_file_keep_each_others_breaches(tmp_path: Path) -> None:
    path = tmp_path / "traffic.json"
    one, other = Breaches(path), Breaches(path)
    one.keep("chat", BREACH)
    wait_until(lambda: Breaches(path).of("chat", "r-1"), what="the breach of the one")
    other.keep("digits", BREACH)
    other.keep("chat", BREACH._replace(rollout="r-2"))
    other.close()
    one.forget("chat")
    one.close()
    assert Breaches(path).of("digits", "r-1") == BREACH
    assert Breaches(path).of("chat", "r-2") is not None, "one forgets its own alone"


def test_without_a_file_a_breach_lasts_as_long_as_the_process() -> None:
    breaches = Breaches(None)
    assert breaches.of("chat", "r-1") is None
    breaches.keep("chat", BREACH)
    assert breaches.of("chat", "r-1") == BREACH


def test_a_lock_of_another_server_does_not_block_the_loop(tmp_path: Path) -> None:
    """The caller is the event loop: it goes on while the thread waits for the lock."""
    path = tmp_path / "traffic.json"
    breaches = Breaches(path)
    with storage.locked(tmp_path / ".traffic.json.lock", "traffic.json"):
        breaches.keep("chat", BREACH)
        assert breaches.of("chat", "r-1") == BREACH
        assert json.loads(path.read_text() if path.exists() else "{}") == {}, "it came back before it was written"
    breaches.close()
    breaches = Breaches(path)
    assert breaches.of("chat", "r-1") == BREACH
    breaches.close()
