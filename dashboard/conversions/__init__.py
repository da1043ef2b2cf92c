"""Turns the files of other tools into a model that the server runs. `recipes` has a program for each kind of source, and
their table. A `Conversion` (conversion) makes the recipe's environment and runs the program. `answers` asks the new model with
the product's own runtimes, in a process of its own, and `check` compares its answers with the source's. `lineage` says where a
version comes from, and `results` which files it has. `python -m dashboard.conversions` does it on a person's own machine.

The room imports `environments` and the rooms below. Nothing of it loads a framework, except the programs that it starts."""
