"""The numba backend; nothing is imported here, so that numba is only when it is used."""
