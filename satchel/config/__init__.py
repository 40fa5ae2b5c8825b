"""Where things live and what the user chose. Knows nothing of models, stores or terminals."""
