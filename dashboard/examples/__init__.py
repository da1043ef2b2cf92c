"""Examples of a model's requests, kept by name, and the golden ones among them: kept, run now, sampled from live traffic. It
imports `versions` and what is below. The playground shows them; `watch` asks for the golden ones and sends them with a load."""
