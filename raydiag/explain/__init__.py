"""EXPLAIN: findings from everywhere -> causes and effects; one verdict; why two jobs differ."""
