"""HTTP/1.1: connections, request heads and bodies, routes, replies and streams. It knows no protocol that is spoken over it.
`routes` says how large a body may be; `connection` refuses one by its Content-Length, `body` one that grows too large.

May import `frontends.shared` and the rooms below it. Protocols (rest, openai, metrics) get an Exchange of it,
and listeners make its Listener.
"""
