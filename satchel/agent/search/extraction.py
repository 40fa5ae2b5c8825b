"""The program that takes HTML apart: from its input to its output, as UTF-8. Knows nothing of who runs it."""

from __future__ import annotations

import contextlib
import logging
import resource
import sys

MAX_MEMORY_BYTES = 1 << 30
MAX_TEXT_BYTES = 1_000_000
CPU_S = 10  # where nobody is left to end it


def main() -> int:
    for kind, limit in ((resource.RLIMIT_CPU, CPU_S), (resource.RLIMIT_AS, MAX_MEMORY_BYTES)):
        with contextlib.suppress(OSError, ValueError):  # macOS has no limit of memory
            resource.setrlimit(kind, (limit, limit))
    import trafilatura

    logging.disable(logging.CRITICAL)
    html = sys.stdin.buffer.read().decode("utf-8")
    text = trafilatura.extract(html, include_comments=False, include_tables=True) or ""
    sys.stdout.buffer.write(text.encode("utf-8", "replace")[:MAX_TEXT_BYTES])
    return 0


if __name__ == "__main__":
    sys.exit(main())
