"""One incident for each row of the playbooks' tables, and for what looks like one and is none."""
