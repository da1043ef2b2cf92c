"""A model store of TorchServe's becomes models: what there is (sources), each archive published as an upload is (taking), and
the job that does it (services, jobs); from `manage.py import_torchserve`, from a page and over REST.

It imports `uploads` and what is below.
"""
