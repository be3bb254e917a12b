"""What triage knows besides failure classes: phases of start-up, exit codes, words of others."""

from raydiag.joblog.tables import tables

TABLES = tables("raydiag.triage", "tables.yaml")
