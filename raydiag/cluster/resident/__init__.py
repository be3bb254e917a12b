"""CARRY: the resident agent: actors that stay on the nodes, so that the next probe starts nothing.

Cluster's side: `driver` (a job of ours on the head) with `warm` (its actors and rounds), `memory`,
`metrics`. Caller's side: `caller` and `life`. Both speak `wire`.
"""
