"""Loads compiled modules for the path of a request; `make compiled` builds them with mypyc and a C compiler.

Everything also runs without a build. A build belongs to exactly these sources under exactly this Python: the name of its folder
is their fingerprint, so that after a change of any source all modules run interpreted until they are built again. The log and
the server's metadata say whether modules run compiled. Imports only `plugins`; programs call `loading.use` before all other
imports.
"""
