"""Sessions between this machine's store and a remote, encrypted before they leave it."""
