"""What every page and WebSocket shares: lists and actions of pages, the base of WebSockets, middleware, error pages, health.
It imports `access`, `templatetags` and what is below, and no room that a person would name. The `pages` and `consumers` of
each room build on it, and the settings name its middleware."""
