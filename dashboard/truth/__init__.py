"""Truth: labels that come after the answers, joined with captured answers by the id of the request.

They become accuracy, error or an own metric of each version, with its spread, and a guardrail of rollouts. Labels come over
REST or from the page, and jobs join them. The rooms `shared`, `models`, `access`, `web`, `jobs`, `catalog`, `rollouts` and
`drift` are below it.
"""
