"""What holds for every test."""

from collections.abc import Generator
from typing import Any

import pytest

from tests.support import (
    blas_threads,
    compiled_modules,
    exploring,
    made_once,
    slowest,
    spreading,
    tls_context,
)  # compiled_modules before serving

blas_threads.use_one()
exploring.use_profile()
spreading.collect_without_garbage()
tls_context.share()
made_once.begin()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    exploring.explore(items)
    compiled_modules.skip_what_replaces_inner_parts(items)
    spreading.put_long_files_first(items)


def pytest_collection_finish() -> None:
    spreading.spare_collected_tests()
    slowest.count()  # collecting costs no file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    return spreading.worker_count()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> spreading.FileScheduling:
    return spreading.FileScheduling(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    slowest.measure(report)
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    slowest.note(report)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    slowest.tell(terminalreporter)
