"""The OpenAI-compatible routes: completions and chat completions of models that generate text, and a list of these models.

May import `frontends.rest`, whose JSON it shares, and the rooms below it. Its handlers are routes of `frontends.http_server`.
"""
