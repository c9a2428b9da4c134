"""From a histogram of live batch sizes to the buckets worth capturing, and to a runner that captures them."""
