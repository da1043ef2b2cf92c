"""Makes models with the tools of others, serves them, and writes docs/formats.md: `python -m tools.formats`.

`makers` holds a program for each environment of requirements/formats; what they write is kept in tests/exported_models.
"""
