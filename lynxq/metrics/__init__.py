"""How far a reconstruction is from the tensor it stands for.

Everything is computed in float64 and in pieces, so that memory stays at some MiB whatever the size, and every
figure is built on sums that can be pooled over many tensors (:class:`ErrorSums`, :class:`AttentionError`).

Arrays are numpy arrays or CPU torch tensors of any float dtype, with any strides; a tensor and its
reconstruction may differ in library and dtype. The rules for corner cases are the same for every ratio:

* 0/0 is 0 (nothing there, nothing lost), x/0 is infinity;
* a non-finite value in a tensor raises `NonFiniteError`: no error is defined there;
* a non-finite value in a *reconstruction* is an infinite error;
* float64 inputs must stay below about 1e150, where their squares overflow.

vNMSE alone misleads: a constant bias of a key channel enlarges the norm and makes any scheme look good, and
attention sinks hardly move it. Report `centred_vnmse` and `attention_output_error` with it.
"""

from lynxq.metrics.attention import AttentionError, attention_output_error
from lynxq.metrics.sums import ErrorSums, bits_per_element, centred_vnmse, max_error, vnmse

__all__ = [
    "AttentionError",
    "ErrorSums",
    "attention_output_error",
    "bits_per_element",
    "centred_vnmse",
    "max_error",
    "vnmse",
]
