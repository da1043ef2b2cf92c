"""The parts of TorchServe's worker protocol that handlers import. The package imports only `ts`."""
