"""SERVE AGENTS: read-only commands as tools of the Model Context Protocol.

An agent calls what a person types. There is no tool that changes anything, and none chooses which
cluster or server is asked: that is fixed when the server is started.
"""
