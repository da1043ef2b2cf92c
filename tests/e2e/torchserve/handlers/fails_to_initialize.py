"""A handler whose weights cannot be read."""


class BrokenHandler:
    def initialize(self, context):
        raise RuntimeError("the weights are damaged")

    def handle(self, data, context):
        return data
