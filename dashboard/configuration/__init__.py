"""Shows, previews and applies config.pbtxt as text and as a form, lists earlier texts, finds changes by hand (drift), and
decides which rights a change needs. The room imports `catalog` and the rooms below. Versions and uploads write configurations
through it, and uploads show its editor."""
