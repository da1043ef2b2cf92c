"""Advice on a model's batching and instances, from its traffic alone. The room imports `configuration` and the rooms below.

traffic      the statistics that advice is made from: gaps between requests, batch sizes, times in the queue and the model
simulation   a discrete-event simulation of the dynamic batcher
candidates   the settings around the present ones
advice       chooses a setting by simulation, and says what it gains and costs, and how certain that is
selectors    the advice for a model, kept for a minute; `pages` and `rest` show it
"""
