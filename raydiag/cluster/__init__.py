"""CARRY: the only importer of ray. Submit, pin, collect, coordinate.

address -> jobs_api (HTTP) -> bundle (what travels) -> coordinator (driver on the head) -> actor
(one per node) -> the node runner; answers come back as frames in the job's log. `collect` is the
caller's side of it, `local` the temporary Ray.
"""
