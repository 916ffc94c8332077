"""lynxq inside other systems: one module or package for each of them, with an extra of the same name.

Several of them share `stores`, where containers lie under names, and `page_keys`, under which names pages are found.
"""
