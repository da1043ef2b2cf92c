"""Examples of a model's requests and golden requests: kept by name, run now, sampled from live traffic. The room imports
`versions` and the rooms below. The playground shows examples, and `watch` sends the golden ones with a load."""
