"""Makes models with other tools, serves them, and writes docs/formats.md: `python -m tools.formats`.

`makers` has a program for each environment of requirements/convert. The programs write the models in tests/exported_models.
"""
