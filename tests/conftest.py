"""How tests run: profiles of hypothesis, one thread for torch, and several processes for the whole suite.

The profile `dev` looks for new failures, `ci` runs the same examples every time.
"""

import os

import pytest
from hypothesis import settings

# Before anything imports torch, and for the processes that tests start. The models of tests are tiny: threads that wait
# for each other in a loop take many times the work that there is, where a machine has other things to do.
os.environ.setdefault("OMP_NUM_THREADS", "1")

settings.register_profile("dev", deadline=None, max_examples=50)
settings.register_profile("ci", deadline=None, max_examples=100, derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "dev")

#: Each process takes about 2 GB: torch, transformers and what numba compiled.
MOST_PROCESSES = 4


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """The whole suite runs in a process for each core; what is named runs in one. ``-n`` says otherwise.

    Slow tests run in one process: they share environments and servers, which each process would make.
    """
    whole = config.args_source is pytest.Config.ArgsSource.TESTPATHS and not hasattr(config, "workerinput")
    if not whole or config.option.usepdb or "LYNXQ_SLOW_TESTS" in os.environ:
        return
    if getattr(config.option, "numprocesses", 1) is not None:  # it is given, or there is no pytest-xdist
        return
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if cores > 1:
        config.option.numprocesses = min(cores, MOST_PROCESSES)
        config.option.dist = "worksteal"  # in order, and whoever is done first takes from the other's end
