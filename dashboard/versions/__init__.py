"""Versions of a model: make live, go back to a release, name, archive, restore, with their jobs, page actions and REST. It
imports `configuration` and what is below. The pages of a model post here, and uploads answer with its shapes."""
