"""How whoever waits beside a person does so. Knows nothing of what for."""

POLL_S = 0.1  # between two looks; some systems deliver Ctrl-C only to a wait that ends
PATIENCE_S = 0.3  # before a wait is told of
