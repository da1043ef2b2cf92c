"""TorchServe's own handlers, and the base class of others. They import `ts`, torch, and the packages that they need."""
