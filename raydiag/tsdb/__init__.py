"""MEASURE: a job's Prometheus data, from its directory or a server that runs: find, ask, verify."""
