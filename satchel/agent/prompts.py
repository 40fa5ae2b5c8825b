"""The words Satchel puts around what the user wrote. Knows nothing of tokens or chat templates."""

from __future__ import annotations


def question_with_input(question: str, given: str) -> str:
    """One message from a question and a text piped in beside it; either may be empty."""
    question, given = question.strip(), given.strip("\n")
    if not (question and given.strip()):
        return question or given.strip()
    # The question stands last: small models answer what they read last.
    return f"Input:\n\n{given}\n\n{question}"
