"""The form that makes an API token."""

from collections.abc import Mapping
from typing import cast

from django import forms
from django.contrib.auth.models import User

from dashboard.access.authorisation import Actor, token_rights
from dashboard.shared.choices import TokenRight

LIFETIMES = ((30, "30 days"), (90, "90 days"), (365, "1 year"), (0, "No end"))


class TokenForm(forms.Form):
    """Offers the rights that the person has; reading and inference are ticked at first."""

    name = forms.CharField(max_length=100, label="Name")
    rights = forms.MultipleChoiceField(label="Rights", widget=forms.CheckboxSelectMultiple)
    days = forms.TypedChoiceField(label="Ends after", choices=LIFETIMES, coerce=int, initial=90)

    def __init__(self, data: Mapping[str, object] | None = None, *, user: User) -> None:
        super().__init__(data)
        rights = cast(forms.MultipleChoiceField, self.fields["rights"])
        rights.choices = [(right.value, right.label) for right in token_rights(Actor(user=user))]
        rights.initial = [TokenRight.READ.value, TokenRight.INFER.value]
