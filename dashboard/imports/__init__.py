"""Imports of a TorchServe model store: finding its archives (sources), publishing each as an upload is (publishing), and
the job that does so (services, jobs); from `manage.py import_torchserve`, from a page and over REST.

It imports `uploads` and what is below.
"""
