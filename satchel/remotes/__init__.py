"""Places for objects beside this machine's store: a bucket, a directory, memory; and wrappers."""
