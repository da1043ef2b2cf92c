"""The alerts that exist without a setting, a line each: what it means, what to do, and the button that leads there.

A finder (`finders`, `machine`) says for which subjects the condition holds now. An alert fires when that has been so for
`hold_s`, and resolves when it has not been so for `clear_s`. `unless` names other alerts: while one of them fires on the same
subject, and so many seconds after its end, this one does not, because it would tell the same fault again. `switches` turns a
kind off.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial

from dashboard.alerts import finders, machine
from dashboard.alerts.facts import Facts, Finding
from dashboard.alerts.rules import find_by_rule
from dashboard.models import AlertRule
from dashboard.objectives.burn import DAY, HOUR, MINUTE
from dashboard.shared.choices import Severity
from dashboard.shared.exceptions import NotFound


@dataclass(frozen=True, slots=True)
class AlertKind:
    """A kind of alert. name: as in an alert's row. button: a verb; it leads to the page that a finding names.

    The button to a part of the tab Requests is named by that part (BUTTONS). of_model: whether its subjects belong to models,
    for each of which it can be switched off. spans: whether it judges history, which is read as often as a span of it ends.
    """

    name: str
    label: str
    severity: str
    means: str
    do: str
    button: str
    find: Callable[[Facts], Iterable[Finding]]
    hold_s: float = 15.0
    clear_s: float = 60.0
    unless: Mapping[str, float] = field(default_factory=dict)
    of_model: bool = False
    spans: bool = False


BUTTONS = {finders.FAILED: "See the failed requests", finders.SLOWEST: "See the slowest requests"}
# A burning budget counts as calm when its short window has been calm for once more its length. A slower rule waits until a
# fault that was told has left its long window.
_CRITICAL, _WARNING = Severity.CRITICAL, Severity.WARNING
PROCESS_SILENT = "process_silent"

DEFAULTS = (
    AlertKind(
        "not_ready",
        "Model not ready",
        _CRITICAL,
        "A model should serve, and no version of it does: its requests are refused.",
        "Read the reason, and correct the model or go back to a release that served.",
        "Read the model's log",
        finders.not_ready,
        of_model=True,
    ),
    AlertKind(
        "burn_fast",
        "Budget burns fast",
        _CRITICAL,
        "At this rate the error budget of 30 days is gone in two days.",
        "See which requests fail or are slow, and since when. Then look at what changed: the charts mark releases.",
        "See the requests",
        finders.burns("burn_fast"),
        0,
        5 * MINUTE,
        {"not_ready": 5 * MINUTE},
        of_model=True,
    ),
    AlertKind(
        "burn",
        "Budget burns",
        _CRITICAL,
        "At this rate the error budget of 30 days is gone in five days.",
        "See which requests fail or are slow, and since when. Then look at what changed: the charts mark releases.",
        "See the requests",
        finders.burns("burn"),
        0,
        30 * MINUTE,
        {"not_ready": 6 * HOUR, "burn_fast": 6 * HOUR},
        of_model=True,
    ),
    AlertKind(
        "burn_slow",
        "Budget burns slowly",
        _WARNING,
        "For three days more of the error budget was spent than 30 days allow.",
        "Find the errors or slow answers that come again and again, or change the objective.",
        "See the requests",
        finders.burns("burn_slow"),
        0,
        6 * HOUR,
        {"not_ready": 3 * DAY, "burn_fast": 3 * DAY, "burn": 3 * DAY},
        of_model=True,
    ),
    AlertKind(
        "load_failed",
        "Load failed",
        _WARNING,
        "A load failed, or a version is missing, while other versions of the model serve.",
        "Read the reason. Load the model again when it is corrected.",
        "Read the model's log",
        finders.load_failed,
        15,
        60,
        {"not_ready": 0},
        of_model=True,
    ),
    AlertKind(
        "serves_instead",
        "Last good release serves",
        _WARNING,
        "The wanted release failed, so the last good one serves in its place.",
        "Correct the wanted release, or go back for good.",
        "See the release that serves",
        finders.serves_instead,
        15,
        60,
        {"not_ready": 0},
        of_model=True,
    ),
    AlertKind(
        "crashes",
        "Crashes in a row",
        _CRITICAL,
        "A process ended unexpectedly several times within minutes, and was started again each time.",
        "Read its last lines. If they name a model, unload that model.",
        "Open the server",
        finders.crashes,
        0,
        60,
    ),
    AlertKind(
        "server_down",
        "Server does not answer",
        _CRITICAL,
        "An inference server does not answer: all its requests fail.",
        "Read the reason. The bundled server is started again by itself; restart another one.",
        "Open the server",
        finders.server_down,
        10,
        30,
    ),
    AlertKind(
        "skew",
        "Load is uneven",
        _WARNING,
        f"A server gets more than {finders.SKEW:g} times the mean of the servers of its environment.",
        "Balance requests, or let clients connect anew from time to time (--http-max-connection-age and its gRPC sibling).",
        "See the servers",
        finders.skew,
        5 * MINUTE,
        2 * MINUTE,
        spans=True,
    ),
    AlertKind(
        PROCESS_SILENT,
        "Process does not answer",
        _CRITICAL,
        "The watcher, the worker or the supervisor is silent.",
        "A silent process is replaced after a minute. If it stays silent, read its log and restart Slipway.",
        "See the processes",
        finders.silent_process,
        0,
        20,
    ),
    AlertKind(
        "queue_grows",
        "Queue grows",
        _WARNING,
        "Requests come faster than the model answers them.",
        "Add instances or enlarge batches; the advice on the model's page simulates both.",
        "See the charts",
        finders.queue_grows,
        0,
        2 * MINUTE,
        of_model=True,
        spans=True,
    ),
    AlertKind(
        "memory",
        "Memory nearly full",
        _WARNING,
        "The memory of this machine, of its container or of a GPU is nearly full.",
        "See which model holds how much. Unload one, or give the models a memory budget.",
        "See who holds the memory",
        machine.memory_low,
        30,
        2 * MINUTE,
    ),
    AlertKind(
        "disk",
        "Disk nearly full",
        _WARNING,
        "The disk of the data folder is nearly full.",
        "Archive or delete versions, or make the disk larger.",
        "See the models",
        machine.disk_full,
        30,
        2 * MINUTE,
    ),
    AlertKind(
        "guardrail",
        "Guardrail breached",
        _WARNING,
        "A rollout was rolled back or cannot go on.",
        "Compare both arms on the rollout's page before you try again.",
        "Open the rollout",
        finders.guardrail,
        0,
        0,
        of_model=True,
    ),
    AlertKind(
        "deployment_stopped",
        "Deployment stopped",
        _WARNING,
        "A server failed, or a person stopped it: a release serves on some servers of an environment only.",
        "Read which server failed and why, then continue or go back.",
        "Open the deployment",
        finders.deployment_stopped,
        0,
        0,
        of_model=True,
    ),
    AlertKind(
        "data_drift",
        "Data drift",
        _WARNING,
        "The newest window of a monitor differs from its reference by more than chance.",
        "Compare the two distributions. Retrain the model, or make a new reference if the change is expected.",
        "See the columns",
        finders.data_drift,
        0,
        60,
        of_model=True,
    ),
    AlertKind(
        "truth",
        "Answers are worse",
        _WARNING,
        "By its labels, the version that serves is worse than a bound, or than the version before it.",
        "Go back to the version before, or look at the data drift and retrain the model.",
        "See the versions",
        finders.truth,
        0,
        60,
        of_model=True,
    ),
    AlertKind(
        "ends_soon",
        "Token or certificate ends",
        _WARNING,
        "A token or certificate ends within a week, or has ended.",
        "Make a new one, and give it to its clients before the old one ends.",
        "Open",
        machine.ends_soon,
        0,
        60,
    ),
)
BY_NAME = {kind.name: kind for kind in DEFAULTS}
_RULE = "rule-"


def kind_name(rule: AlertRule) -> str:
    return f"{_RULE}{rule.pk}"


def kind_of_rule(rule: AlertRule) -> AlertKind:
    """Return the kind of alert that an own rule makes."""
    means = (
        f"A figure is {'above' if rule.above else 'below'} the value that {rule.created_by_name or 'somebody'} chose."
    )
    find = partial(find_by_rule, rule)
    return AlertKind(
        kind_name(rule), rule.name, rule.severity, means, "See the charts of that time.", "See the charts", find, 0, 60
    )


def default_kind(name: str) -> AlertKind:
    """Return a default kind. Raises NotFound if there is none of that name."""
    if name not in BY_NAME:
        raise NotFound(f"there is no alert '{name[:40]}' without a setting")
    return BY_NAME[name]


def kinds() -> list[AlertKind]:
    """Return the default kinds and those of own rules."""
    return [*DEFAULTS, *map(kind_of_rule, AlertRule.objects.all())]


def button_of(kind: AlertKind | None, address: str) -> str:
    """Return the words on the button that leads to the cause of an alert. kind: None if its rule was removed."""
    return BUTTONS.get(address.partition("#")[2], kind.button if kind is not None else "Open")


def kind_of(name: str) -> AlertKind | None:
    """Return the kind of an alert; None if its rule was removed."""
    if name in BY_NAME:
        return BY_NAME[name]
    number = name.removeprefix(_RULE)
    rule = AlertRule.objects.filter(pk=number).first() if name.startswith(_RULE) and number.isdecimal() else None
    return kind_of_rule(rule) if rule is not None else None
