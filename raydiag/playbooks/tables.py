"""`playbooks.yaml`: what each playbook asks, what its rows rest on, and what is compared."""

from dataclasses import dataclass
from importlib import resources

from raydiag.catalog.rows import CatalogRow, loaded, rows

_FILE = "playbooks.yaml"
_TABLE = CatalogRow(
    loaded(resources.files(__package__).joinpath(_FILE).read_text("utf-8"), _FILE), _FILE, _FILE
)


@dataclass(frozen=True)
class RowKind:
    """What holds for a row of a report, where a call does not say otherwise."""

    failure_class: str = ""  # of its observations
    query: str = ""
    needs: str = (
        ""  # the metric without which it is undecided, where others of the query will not do
    )
    unit: str = ""  # of its values
    confidence: str = ""  # of its observations; likely, where there is none
    healthy: str = ""  # what is true where it does not hold


PLAYBOOKS = {row.name: row for row in rows(_TABLE.take("playbooks"), _FILE, "id")}
ROWS = {
    name: CatalogRow(kind, _FILE, name).rest(RowKind) for name, kind in _TABLE.table("rows").items()
}
FOLLOW_UPS = _TABLE.texts("follow_ups")
CLASS_OF_COUNTER = _TABLE.mapping("class_of_counter")
COMPARED, COUNTED = _TABLE.take("compared"), _TABLE.take("counted")
_TABLE.end()
