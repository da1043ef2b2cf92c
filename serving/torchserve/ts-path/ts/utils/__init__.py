"""Code shared by handlers: labels, classes of a module, the exception with a status. The package imports only its modules."""
