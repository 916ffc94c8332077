"""The CUDA backend; nothing is imported here, so that CuPy is only when it is used."""
