"""Objectives of models: the share of requests that should be good, what is left of the budget of bad ones, and how fast it
burns, with pages and REST. The room imports `metrics`, `catalog` and the rooms below. `watch` counts; `alerts` reads.

burn       burn rates, the budget and its forecast from a series of counts, as pure functions
counts     counts the requests of each minute and hour from the metrics history
selectors  the standing of an objective; `services` sets it
"""
