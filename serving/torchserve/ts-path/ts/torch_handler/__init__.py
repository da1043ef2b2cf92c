"""TorchServe's own handlers, and the base class of other handlers. They import `ts`, torch, and packages that they need."""
