"""lynxq inside other systems: one module or package for each of them, with an extra of the same name."""
