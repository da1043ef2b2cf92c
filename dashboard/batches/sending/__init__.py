"""Sends rows to a model: as requests in binary form (`requests`), several at a time (`sender`), as many as live traffic leaves
room for (`pace`, `governor`). The room imports `formats` of its own parent, `metrics`, `servers` and the rooms below."""
