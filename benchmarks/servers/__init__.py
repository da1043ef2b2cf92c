"""The servers that are compared: what they serve, how each is started, and what the peers run (programs/)."""
