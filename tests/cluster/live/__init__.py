"""A small lab: a toy training on simulated hosts, faults planted in it, and what raydiag says.

`python -m tests.cluster.live [--only WORDS] [--keep DIR]` plants one fault after the other and
prints what probe, live diagnosis and the diagnosis of the job's directory made of each.
"""
