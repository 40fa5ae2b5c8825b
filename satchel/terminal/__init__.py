"""Input and rendering. The only package that imports rich or prompt_toolkit."""
