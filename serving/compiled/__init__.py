"""Loads compiled modules, made by `make compiled` with mypyc and a C compiler, for the path of a request.

Everything runs without a build as well. A build belongs to exactly these sources under exactly this Python: its folder is named
by their fingerprint, so that a changed source runs interpreted until it is built again. The log and the server's metadata say
whether modules run compiled. Imports `plugins` alone; programs call `loading.use` before all other imports.
"""
