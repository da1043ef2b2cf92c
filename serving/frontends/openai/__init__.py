"""The OpenAI-compatible routes: completions and chat completions of models that generate text, and a list of these models.

May import `frontends.rest`, for its JSON, and the rooms below it. `frontends.http_server` lists the handlers as routes.
"""
