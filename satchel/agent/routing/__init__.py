"""How a message finds its tool: features, read-outs and label scoring."""
