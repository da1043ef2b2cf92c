"""The kinds of text, in the order in which they are applied: people are named by policies, and models by own alerts.

Of a model, the configuration comes before its policies: a budget would refuse the version that the same text makes live.
"""

from dashboard.text.alerts import CHANNELS, OFF, RULES
from dashboard.text.drift import MONITORS
from dashboard.text.environments import DEPLOYMENT_POLICIES, ENVIRONMENTS, SERVERS, WANTED
from dashboard.text.examples import EXAMPLES
from dashboard.text.kinds import Kind
from dashboard.text.models import CONFIGURATIONS, MODELS, VERSIONS
from dashboard.text.people import PEOPLE, QUOTAS, TOKENS
from dashboard.text.policies import POLICIES

KINDS: tuple[Kind, ...] = (
    PEOPLE,
    TOKENS,
    QUOTAS,
    ENVIRONMENTS,
    SERVERS,
    MODELS,
    VERSIONS,
    CONFIGURATIONS,
    POLICIES,
    WANTED,
    DEPLOYMENT_POLICIES,
    EXAMPLES,
    MONITORS,
    CHANNELS,
    RULES,
    OFF,
)
