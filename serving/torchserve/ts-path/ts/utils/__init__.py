"""Shared by handlers: labels, classes of a module, the exception with a status. It imports only itself."""
