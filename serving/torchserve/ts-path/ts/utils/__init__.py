"""Code shared by handlers: labels, a module's classes, the exception with a status. Imports nothing else from Slipway."""
