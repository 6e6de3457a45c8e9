"""`prefect.toml` beside `.ratchet`, so that `prefect …` in that folder uses the local server."""

from __future__ import annotations

from pathlib import Path

from flows.local_services.paths import work_folder
from flows.local_services.processes import root_of
from flows.local_services.state import load_records

_MARK = "# Written by `ratchet up` and removed by `ratchet down`; edits are lost. Home: "


def point_prefect_at(home: Path, api_url: str) -> bool:
    """Write the file, unless the user wrote it or it belongs to another running home.

    Returns:
        Whether the file now contains the address of this home's server.
    """
    path = work_folder() / "prefect.toml"
    if path.exists() and not _may_replace(path, home):
        return False
    path.write_text(f'{_MARK}{home}\n[api]\nurl = "{api_url}"\n')
    return True


def forget_prefect_of(home: Path) -> None:
    """Delete the file if this home wrote it."""
    path = work_folder() / "prefect.toml"
    if path.exists() and _home_in(path) == home:
        path.unlink()


def _may_replace(path: Path, home: Path) -> bool:
    other = _home_in(path)
    if other is None:
        return False
    if other == home:
        return True
    return not any(root_of(record) for record in load_records(other).services.values())


def _home_in(path: Path) -> Path | None:
    first, *_ = path.read_text().splitlines() or [""]
    return Path(first.removeprefix(_MARK)) if first.startswith(_MARK) else None
