"""lynxq inside of other systems: one module for each, imported when it is used; none of them is needed by another."""
