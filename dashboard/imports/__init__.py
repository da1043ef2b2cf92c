"""The one room that knows TorchServe: its model stores are imported, its archives shown, its protocols offered.

`plugin` declares what the room adds to others: archives that are shown (archives) and protocols of the bundled server
(bundled_server). An import finds the archives of a store (sources) and publishes each as an upload is (publishing), by a job
(services, jobs); from `manage.py import_torchserve`, from a page and over REST. The room imports `uploads` and what is below.
"""
