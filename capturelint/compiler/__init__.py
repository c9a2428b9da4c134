"""Graph breaks, skips, partitions and coverage of the compiled step."""
