"""What tests of hotfixes need everywhere."""

from tests.default_signals import deliverable_signals

__all__ = ["deliverable_signals"]
