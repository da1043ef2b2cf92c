"""Where models come from: folders of this machine, copies of what lies in the cloud, and what load requests brought.

May import `cli`, `core` and the package `repository`, which knows the layout on disk and the stores. `serving.models` calls it
to list models, to fetch and read one, and to see what has changed.
"""
