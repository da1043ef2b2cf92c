"""Releases: the versions and the configuration that a model should serve, when each release served, and the release to
which *go back* returns. Only this room writes config.pbtxt in the managed repository, the repository's bucket, releases, and
the facts about them. The room imports `servers`, `access` and the rooms below. The catalog and all rooms above ask it which
versions are live."""
