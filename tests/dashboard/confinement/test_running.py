"""What the caller learns of a program: its lines as they come, its status, its output."""

import os
import tempfile

from tests.dashboard.confinement.conftest import Confined


def test_lines_come_while_the_program_runs(own: Confined) -> None:
    running: list[int] = []

    class Lines(list[str]):
        def append(self, line: str) -> None:
            super().append(line)
            running.append(len(own.processes()))
            (own.folder / "go on").touch()

    own.lines = Lines()
    code = "import os\nprint('first', flush=True)\nwhile not os.path.exists('go on'): pass\nprint('second')"
    assert own.run(code).sentence == ""
    assert own.lines == ["first", "second"]
    assert running[0] == 1


def test_what_a_bar_of_progress_writes_is_lines(own: Confined) -> None:
    own.run("print(' 10 %', end='\\r'); print(' 20 %', end='\\r'); print('\\n\\ndone', end='')")
    assert own.lines == [" 10 %", " 20 %", "done"]


def test_bytes_that_are_no_text_are_replaced(own: Confined) -> None:
    own.run("import os\nos.write(1, b'\\xff\\n')")
    assert own.lines == ["\N{REPLACEMENT CHARACTER}"]


def test_standard_output_can_go_to_a_file(own: Confined) -> None:
    with tempfile.TemporaryFile() as output:
        own.run("import sys\nprint('result')\nprint('said', file=sys.stderr)", output=output)
        output.seek(0)
        assert output.read() == b"result\n"
    assert own.lines == ["said"]


def test_a_program_that_fails_silently_is_one_sentence(own: Confined) -> None:
    ended = own.run("raise SystemExit(3)")
    assert (ended.status, ended.sentence) == (3, "The program ended with status 3 and printed nothing.")


def test_a_program_that_is_killed_is_one_sentence(own: Confined) -> None:
    ended = own.run("import os\nos.kill(os.getpid(), 9)")
    assert (ended.status, ended.bound) == (-9, None)
    assert "too little memory" in ended.sentence


def test_a_large_environment_arrives_whole(own: Confined) -> None:
    order = own.order("import os\nprint(sum(map(len, os.environ.values())) > 1_000_000)")
    order["environment"] |= {f"LARGE_{number}": "x" * 100_000 for number in range(11)}
    with own.runner(order) as runner:
        assert runner.stdout is not None
        assert "True" in runner.stdout.readline()


def test_the_program_starts_where_it_is_told(own: Confined) -> None:
    own.run("import os\nprint(os.getcwd())", directory=own.folder.parent)
    assert own.lines == [os.path.realpath(own.folder.parent)]


def test_standard_input_is_empty(own: Confined) -> None:
    own.run("import sys\nprint(repr(sys.stdin.read()))")
    assert own.lines == ["''"]
