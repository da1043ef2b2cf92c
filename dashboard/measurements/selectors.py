"""Reads of measurements."""

from collections.abc import Sequence

from django.db.models import QuerySet

from dashboard.models import Measurement, Version
from dashboard.shared.choices import MeasurementState
from dashboard.shared.exceptions import Invalid, NotFound

MOST_COMPARED = 12  # measurements on one page


def measurements(version: Version) -> QuerySet[Measurement]:
    """Return the measurements of a version, the newest first."""
    return Measurement.objects.filter(version=version).select_related("version__model", "job")


def measurement_get(version: Version, pk: int) -> Measurement:
    """Return a measurement. Raises NotFound if the version has none of that id."""
    try:
        return measurements(version).get(pk=pk)
    except Measurement.DoesNotExist:
        raise NotFound(
            f"version {version.number} of '{version.model.name}' has no measurement {str(pk)[:20]}"
        ) from None


def comparable(measurement: Measurement) -> QuerySet[Measurement]:
    """Return the measurements of all versions of the model that have figures, except this one; the newest first."""
    rows = Measurement.objects.filter(version__model=measurement.version.model_id).exclude(loads=[])
    return rows.exclude(pk=measurement.pk).select_related("version__model")


def comparable_get(measurement: Measurement, pk: int) -> Measurement:
    """Return a measurement of the same model. Raises NotFound if there is none of that id with figures."""
    found = comparable(measurement).filter(pk=pk).first()
    if found is None:
        raise NotFound(f"model '{measurement.version.model.name}' has no other measurement {str(pk)[:20]} with figures")
    return found


def measured() -> QuerySet[Measurement]:
    """Return the measurements of all models that are done, the newest first."""
    rows = Measurement.objects.filter(state=MeasurementState.DONE).exclude(loads=[])
    return rows.select_related("version__model")


def measured_in_order(pks: Sequence[int]) -> list[Measurement]:
    """Return measurements that are done, in the order of their ids.

    Raises Invalid if there are too many. Raises NotFound if an id is not that of a measurement that is done.
    """
    wanted = list(dict.fromkeys(pks))
    if len(wanted) > MOST_COMPARED:
        raise Invalid(f"at most {MOST_COMPARED} measurements can be compared, but {len(wanted)} were chosen")
    found = measured().in_bulk(wanted)
    missing = next((pk for pk in wanted if pk not in found), None)
    if missing is not None:
        raise NotFound(f"there is no measurement {missing} that is done")
    return [found[pk] for pk in wanted]
