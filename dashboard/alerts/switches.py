"""Switches default alerts off and on again, for the installation or for one model.

What fires is resolved at once, and nobody is told of that kind until it is switched on. Nothing else changes: it shows no alert
that began meanwhile, and an alert that it would have kept back (`unless` in the table) tells the fault itself.
"""

from django.db import transaction

from dashboard.access.audit import audit_record
from dashboard.access.authorisation import Actor, Right, require
from dashboard.alerts.services import alerts_close
from dashboard.alerts.table import AlertKind
from dashboard.models import AlertOff, Model
from dashboard.shared.exceptions import Invalid


def kind_switch(*, kind: AlertKind, actor: Actor, on: bool, model: Model | None = None) -> None:
    """Switch a default kind off or on: for one model, or without one for the installation. What is so already stays so."""
    require(actor, Right.ADMINISTER if model is None else Right.OPERATE)
    if model is not None and not kind.of_model:
        raise Invalid.at("model", f"'{kind.label}' is not about models; switch it off for all of the installation")
    where = f"for {model.name}" if model is not None else "for the installation"
    with transaction.atomic():
        if on:
            changed = bool(AlertOff.objects.filter(kind=kind.name, model=model).delete()[0])
        else:
            _, changed = AlertOff.objects.get_or_create(kind=kind.name, model=model, defaults={"by_name": actor.name})
            of_model = model.name if model is not None else ""
            alerts_close(kind=kind.name, actor=actor, why=f"switched off {where}", model_name=of_model)
        if changed:
            audit_record(
                actor=actor,
                action="alert.switch",
                summary=f"Switched the alert '{kind.label}' {'on' if on else 'off'} {where}",
                model=model,
                after={"kind": kind.name, "on": on},
            )
