"""The sources of models: folders of this machine, copies of repositories in the cloud, and the content of load requests.

This package may import `cli`, `core` and the package `repository`, which knows the layout on disk and the stores.
`serving.models` calls this package to list models, to fetch and read a model, and to find changes.
"""
