"""Makes job directories of which the cause of trouble is known: logs, Prometheus blocks, truth.

`python -m tests.incidents.generate KIND --seed N --out DIR`; see README.md beside this file.
"""
