"""Acts on the versions of a model: making them live, going back to a release, naming, archiving and restoring them, with jobs,
pages and REST. The room imports `configuration` and the rooms below. Uploads answer with its serializers."""
