"""What holds for every test."""

from hypothesis import HealthCheck, settings

# The same examples on every run and on every machine, however slow: a change of ours alone makes a test fail.
settings.register_profile("slipway", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("slipway")
