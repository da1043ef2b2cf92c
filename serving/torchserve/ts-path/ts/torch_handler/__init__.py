"""The handlers that TorchServe brings, and the base of people's own. They import `ts`, torch, and what else they need."""
