"""The first code in the sandbox: gives up rights, then becomes the program.

    python -I sandbox_entry.py '{"limits": {"RLIMIT_AS": …}, "user": …, "folders": …}' program.py

Imports only the standard library; see `training_core.rewards.sandbox`.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import struct
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

FAILED = 125
"""Exit code if the sandbox could not be set up, so that the program never ran."""

SET_NO_NEW_PRIVILEGES = 38

# Landlock, https://docs.kernel.org/userspace-api/landlock.html; the same numbers on x86 and ARM.
CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
GIVE_VERSION = 1
BELOW_PATH = 1
READ = 0b1101  # execute, read files, list folders
OF_FILES = 0b100_0000_0000_0111  # execute, write, read, truncate
RIGHTS = {1: 13, 2: 14, 3: 15}
"""Version of Landlock -> number of its rights; later versions know those of 3, too."""


def main() -> None:
    """Give up rights, and run the program instead of this one."""
    settings = json.loads(sys.argv[1])
    try:
        _limit(settings["limits"])
        if settings["user"] is not None:
            os.setgroups([])
            os.setresgid(settings["user"], settings["user"], settings["user"])
            os.setresuid(settings["user"], settings["user"], settings["user"])
        libc = ctypes.CDLL(None, use_errno=True)
        _check(libc.prctl(SET_NO_NEW_PRIVILEGES, 1, 0, 0, 0))
        if settings["folders"] is not None:
            _hide_files(libc, settings["folders"])
        # -I: no variables of the environment, no packages of the user, nothing from the folder.
        os.execv(sys.executable, [sys.executable, "-I", "-B", sys.argv[2]])
    except (OSError, ValueError) as error:
        sys.stderr.write(f"{type(error).__name__}: {error}")
        os._exit(FAILED)


def _limit(limits: Mapping[str, int]) -> None:
    for name, wanted in limits.items():
        number = getattr(resource, name)
        hard = resource.getrlimit(number)[1]
        limit = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(number, (limit, limit))


def _hide_files(libc: ctypes.CDLL, readable: Sequence[str]) -> None:
    """Leave only the present folder with all rights, and some paths that can be read."""
    version = _check(libc.syscall(CREATE_RULESET, None, 0, GIVE_VERSION))
    everything = (1 << RIGHTS[min(version, max(RIGHTS))]) - 1
    handled = struct.pack("Q", everything)
    rules = _check(libc.syscall(CREATE_RULESET, handled, len(handled), 0))
    rights = {".": everything, "/dev/null": everything, **dict.fromkeys(readable, READ)}
    for path, allowed in rights.items():
        if not Path(path).exists():
            continue
        place = os.open(path, os.O_PATH)
        usable = allowed if Path(path).is_dir() else allowed & OF_FILES & everything
        rule = struct.pack("=Qi", usable, place)
        _check(libc.syscall(ADD_RULE, rules, BELOW_PATH, rule, 0))
        os.close(place)
    _check(libc.syscall(RESTRICT_SELF, rules, 0))
    os.close(rules)


def _check(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


if __name__ == "__main__":
    main()
