"""Service envelopes: clients wrap their instances in them, and these modules unwrap them, with only `ts` and numpy."""
