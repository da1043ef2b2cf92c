"""Every answered request is counted once while a worker, the reader of the log and the server are killed."""

import asyncio
from pathlib import Path

from benchmarks.usage_soak import soak


def test_each_answered_request_is_counted_once_while_processes_are_killed(tmp_path: Path) -> None:
    outcome = asyncio.run(soak(tmp_path, requests=4000, kills=3))
    assert outcome.problems == []
    assert outcome.kills == {"worker": 1, "reader": 1, "server": 1}
