"""Slipway beside the real TorchServe: archives made by torch-model-archiver, one set of requests, answers compared.

It needs Java, as TorchServe does; without it these tests are skipped. `archives.py` has the corpus, `asking.py` asks and says
what of an answer counts, `differences.py` where answers may differ; `tests/support/torchserve_process.py` starts the servers.
The folder `handlers` is what a team would have written: it knows nothing of us.
"""
