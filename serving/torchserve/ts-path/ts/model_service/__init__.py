"""The base class of the oldest handlers. It imports only itself."""
