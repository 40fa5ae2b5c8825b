"""Sessions on disk: blocks, manifests and heads. Runs without MLX."""
