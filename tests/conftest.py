"""Hypothesis profiles: `dev` looks for new failures, `ci` runs the same examples every time. One thread for torch."""

import os

from hypothesis import settings

# Before anything imports torch, and for the processes that tests start. The models of tests are tiny: threads that wait
# for each other in a loop take many times the work that there is, where a machine has other things to do.
os.environ.setdefault("OMP_NUM_THREADS", "1")

settings.register_profile("dev", deadline=None, max_examples=50)
settings.register_profile("ci", deadline=None, max_examples=100, derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "dev")
