"""Slipway beside the real TorchServe: archives made by torch-model-archiver, one set of requests, answers compared.

It needs Java, as TorchServe does; without it these tests are skipped. `archives.py` has the corpus, `servers.py` starts both,
`asking.py` asks and says what of an answer counts. The folder `handlers` is what a team would have written: it knows
nothing of us.
"""
