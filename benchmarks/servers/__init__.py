"""The servers to compare: their models, the command of each, and the programs of the peers (programs/)."""
