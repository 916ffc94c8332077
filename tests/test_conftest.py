"""When tests run in several processes: the whole suite does, and nothing that is better off in one."""

import os
from types import SimpleNamespace

import pytest

from tests.conftest import MOST_PROCESSES, pytest_cmdline_main

WHOLE, NAMED = pytest.Config.ArgsSource.TESTPATHS, pytest.Config.ArgsSource.ARGS


def processes(source=WHOLE, **changes):
    """What becomes of the options."""
    option = SimpleNamespace(**{"usepdb": False, "numprocesses": None, "dist": "no", **changes})
    pytest_cmdline_main(SimpleNamespace(args_source=source, option=option))
    return option.numprocesses, option.dist


@pytest.fixture(autouse=True)
def _three_cores(monkeypatch):
    monkeypatch.delenv("LYNXQ_SLOW_TESTS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(3)), raising=False)


def test_the_whole_suite_runs_in_a_process_for_each_core(monkeypatch):
    assert processes() == (3, "worksteal")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))
    assert processes() == (MOST_PROCESSES, "worksteal")


def test_one_process_is_left_alone(monkeypatch):
    assert processes(NAMED) == (None, "no")
    assert processes(numprocesses=0) == (0, "no")  # -n0
    assert processes(numprocesses=8) == (8, "no")
    assert processes(usepdb=True) == (None, "no")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {5})
    assert processes() == (None, "no")
    monkeypatch.setenv("LYNXQ_SLOW_TESTS", "1")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {5, 6})
    assert processes() == (None, "no")


def test_a_worker_starts_no_workers():
    option = SimpleNamespace(usepdb=False, numprocesses=None, dist="no")
    pytest_cmdline_main(SimpleNamespace(args_source=WHOLE, option=option, workerinput={}))
    assert option.numprocesses is None


def test_without_the_plugin_nothing_changes():
    option = SimpleNamespace(usepdb=False)
    pytest_cmdline_main(SimpleNamespace(args_source=WHOLE, option=option))
    assert vars(option) == {"usepdb": False}
