"""Service envelopes: what a client wraps its instances in, so that a handler need not know. They import only `ts` and numpy."""
