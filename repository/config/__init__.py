"""A model's configuration: config.pbtxt and its JSON form, edits that keep a person's text, validation, own parameters.

It may import `repository.core`. The dashboard edits and checks configurations with this package. With it, the server reads and
checks configurations, and decides which changes need a reload.
"""
