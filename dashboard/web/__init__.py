"""The parts that every page and WebSocket shares: lists and actions of pages, the base of WebSockets, middleware, error pages,
health. The room imports `access`, `templatetags` and the rooms below them, but no room of a feature. The `pages` and
`consumers` of each room build on it, and the settings name its middleware."""
