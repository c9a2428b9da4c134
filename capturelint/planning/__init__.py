"""Which buckets to capture, and the runner that captures them."""
