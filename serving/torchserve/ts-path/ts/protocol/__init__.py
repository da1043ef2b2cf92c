"""The parts of TorchServe's worker protocol that handlers import. It imports only `ts`."""
