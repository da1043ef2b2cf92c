"""A service class without BaseHandler, whose entry is a function of the module that keeps one of it."""


class Service:
    def __init__(self):
        self.initialized = False

    def initialize(self, context):
        self.version = context.manifest["model"]["modelVersion"]
        self.initialized = True

    def predict(self, data, context):
        return [f"version {self.version} of {context.model_name}" for _ in data]


_service = Service()


def serve(data, context):
    if not _service.initialized:
        _service.initialize(context)
    return None if data is None else _service.predict(data, context)
