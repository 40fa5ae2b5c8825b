"""Looks in the web: a query, hits, pages, passages, and answers that cite them."""
