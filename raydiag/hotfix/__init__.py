"""Change: the only code that alters a node. Plan, check, replace, restart, verify, roll back."""
