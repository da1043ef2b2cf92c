"""Truth: labels that come after the answers, joined with captured answers by the id of the request.

They become accuracy, error or an own metric of each version, with its spread, a guardrail of rollouts, and an alert. Labels
come over REST or from the page, and jobs join them. It uses the rooms `shared`, `models`, `access`, `web`, `jobs`, `releases`,
`catalog`, `configuration`, `rollouts`, `playground` (the names of classes) and `drift` (how captures are read).
"""
