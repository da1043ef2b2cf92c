"""config.pbtxt: as text and as a form, previewed, applied, returned to; changes made by hand (drift); which rights a change
needs. It imports `catalog` and what is below. Versions and uploads write configurations through it, and uploads show its
editor."""
