"""Sessions to and from files that people and other programs read. Nothing here knows of the terminal."""
