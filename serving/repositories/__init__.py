"""The sources of models: folders of this machine, copies of repositories in the cloud, and content of load requests.

May import `cli`, `core` and the package `repository`, which knows the layout on disk and the stores. `serving.models` calls it
to list models, to fetch and read one, and to find changes.
"""
