"""Service envelopes: clients wrap their instances in them, and these modules unwrap them. They import only `ts` and numpy."""
