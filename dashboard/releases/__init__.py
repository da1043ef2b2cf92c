"""Releases: the versions and the configuration that a model should serve, when each release served, and the release to
which *go back* returns. The managed repository, which holds the text of the newest release, belongs to the room too. The room
imports `servers`, `access` and the rooms below; the catalog and all rooms above ask it which versions are live. Only this room
writes config.pbtxt, releases and their facts."""
