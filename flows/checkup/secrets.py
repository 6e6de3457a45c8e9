"""Can other users of this machine read what is secret?"""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path

from flows.checkup.finding import Finding, good, problem

SECRET_FILES = ("services.json",)


def check_permissions(home: Path) -> Iterator[Finding]:
    """Check the files that hold addresses with logins, and tokens."""
    wrong = [
        path
        for name in SECRET_FILES
        if (path := home / name).exists() and stat.S_IMODE(path.stat().st_mode) & 0o077
    ]
    for path in wrong:
        yield problem(f"other users can read {path}", f"chmod 600 {path}")
    if not wrong:
        yield good(f"no other user can read the secrets in {home}")
