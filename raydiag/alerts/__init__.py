"""SERVE: answer a firing alert of Alertmanager with a diagnosis of its job.

`payload` reads what was sent, `desk` decides what is asked and keeps the answers, `receiver` is the
HTTP server. What is sent is data of somebody else: it is checked, bounded and never run.
"""
