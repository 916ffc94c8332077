"""The numba kernels of the ``cpu`` backend. Nothing here knows about Python objects other than flat arrays.

Kernels are compiled without the global lock and without any threading layer. Arrays are one-dimensional and
contiguous, and of few types, so that there are few specializations: raw values as ``uint16`` or ``uint32`` bit
patterns, streams as ``uint8``, scratch.
"""
