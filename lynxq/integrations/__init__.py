"""Connections to the systems in which KV caches live: one module or package for each, imported when it is used."""
