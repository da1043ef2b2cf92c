"""The one room that knows TorchServe: it imports model stores, shows archives and offers TorchServe's protocols.

`plugin` declares the parts that other rooms use: the reader of archives (archives) and the protocols of the bundled server
(bundled_server). An import is a job (services, jobs), which a person starts with `manage.py import_torchserve`, on a page or
over REST. It finds the archives of a store (sources) and publishes each of them like an upload (publishing). The room imports
`uploads` and the rooms below.
"""
