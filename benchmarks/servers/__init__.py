"""The servers that are compared: their models, how each is started, and the programs of the peers (programs/)."""
