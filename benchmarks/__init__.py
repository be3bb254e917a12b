"""What raydiag costs, beside a peer or a floor in the same run; nothing here is a test."""
