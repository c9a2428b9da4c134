"""Skip, partition, fallback and graph-break messages in saved logs."""
