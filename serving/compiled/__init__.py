"""Loads compiled modules for the path of a request; `make compiled` builds them with mypyc and a C compiler.

Everything also runs without a build. A build is valid only for the sources and the Python that it was made with. Their
fingerprint is the name of the build's folder. After any change of a source, all modules run interpreted until the next build.
The log and the server's metadata say whether modules run compiled. Imports only `plugins`. Programs call `loading.use` before
all other imports.
"""
