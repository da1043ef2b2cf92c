"""Runs a program that nobody trusts, within the bounds that this machine can keep. `program.run` starts it; `promises` says
which promises the machine keeps, and what is missing for the others. The rest is the launcher: it imports only the standard
library, because it runs in a process of its own, sets the bounds there and becomes the program.

The room imports `shared`. The inspection of uploads calls it."""
