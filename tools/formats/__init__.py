"""Makes models with other tools, serves them, and writes docs/formats.md: `python -m tools.formats`.

`makers` contains a program for each environment of requirements/formats. Their models are kept in tests/exported_models.
"""
