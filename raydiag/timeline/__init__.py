"""MEASURE: what a run's series say of training, of its hosts and of the power that its GPUs draw.

Playbooks and comparisons read the answers of Prometheus through `run_timeline.RunTimeline`. Nothing
here talks to a server, and nothing here is an opinion about a cause.
"""
