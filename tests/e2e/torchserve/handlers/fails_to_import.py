"""A handler that needs a module that nobody has."""

import no_such_module_anywhere


def handle(data, context):
    return no_such_module_anywhere.answer(data)
