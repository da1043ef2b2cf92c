"""TorchServe's own handlers, and the base class of other handlers. These modules import `ts`, torch, and what they need."""
