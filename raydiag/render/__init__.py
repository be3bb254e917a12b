"""SHOW: what was found, as text for people and as JSON for programs; equal nodes folded together.

`text.probe_report` and `document.probe_document` are the ways in. Nothing here measures, judges
or prints.
"""
