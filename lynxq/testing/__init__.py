"""For tests of code that uses lynxq, and of backends; needs hypothesis."""

from lynxq.testing.conformance import check_backend
from lynxq.testing.strategies import CONTENTS, MEMORY, Sample, contents, params, tensors

__all__ = ["CONTENTS", "MEMORY", "Sample", "check_backend", "contents", "params", "tensors"]
