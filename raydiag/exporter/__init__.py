"""SERVE: the metrics of one node as a page of text, by plugins that cannot hold each other up."""
