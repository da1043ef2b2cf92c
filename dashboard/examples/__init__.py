"""Stores a model's example requests and golden requests by name, runs them on demand, and samples them from live traffic. The
room imports `versions` and the rooms below. The playground shows examples, and `watch` sends the golden ones with a load."""
