"""What handlers import of the protocol between TorchServe and its workers. It imports only `ts`."""
