"""The base class of the oldest handlers. The package imports only its own modules."""
