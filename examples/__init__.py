"""Incidents to try raydiag on, a live one, and the script that makes them."""
