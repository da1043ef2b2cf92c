"""What a child prints enters its log, the model's log and the sentence about its end without what a terminal obeys."""

import asyncio
import sys
from contextlib import closing
from pathlib import Path

from dashboard.shared.log_files import LogFollower, RotatingLog, tail
from dashboard.supervisor.process import Child, Ending, ProcessSpec

PRINTED = "2026-11-30 17:05:00,123 INFO serving.x [digits/3]: \x1b[2J\x1b]0;owned\x07\u202etxt.exe \x1b[31mred\x1b[0m"
SHOWN = "\\x1b[2J\\x1b]0;owned\\x07\\u202etxt.exe red"


def test_a_childs_output_is_plain_in_every_log(tmp_path: Path) -> None:
    program = f"import os; os.write(2, {PRINTED.encode()!r} + b'\\n' + {PRINTED.encode()!r}); raise SystemExit(3)"
    spec = ProcessSpec(
        name="server",
        title="x",
        command=(sys.executable, "-c", program),
        log=tmp_path / "server.log",
        folder=tmp_path,
        model_logs=tmp_path / "models",
    )

    async def run() -> Ending:
        with closing(RotatingLog(spec.log)) as log:
            child = Child(spec, log)
            await child.start(lambda pid: None)
            return await child.wait_until_ended()

    ending = asyncio.run(run())
    assert ending.code == 3
    for said in (spec.log.read_text(), (tmp_path / "models" / "digits.log").read_text(), ending.last_words):
        assert SHOWN in said
        assert said.replace("\n", "").isprintable()


def test_an_older_log_is_shown_plain(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    follower = LogFollower(log)
    log.write_text(f"{PRINTED}\n")
    for lines in (tail(log, 5), follower.read()):
        assert all(line.isprintable() for line in lines)
        assert SHOWN in lines[0]
