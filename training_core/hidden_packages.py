"""Packages that transformers and accelerate import where they are installed, for nothing of ours.

Each of them costs every stage process a second or two.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def hidden(*packages: str) -> Iterator[None]:
    """Make packages look as if they were not installed, for as long as the `with` lasts.

    One that this process has imported already stays as it is: it costs nothing any more, and its
    objects may be in use.

    Args:
        packages: top-level names, e.g. `sklearn`.
    """
    absent = [name for name in packages if name not in sys.modules]
    modules: dict[str, Any] = sys.modules
    modules.update(dict.fromkeys(absent))  # None is Python's own mark of what cannot be imported
    try:
        yield
    finally:
        for name in absent:
            del modules[name]


def tell_transformers_to_do_without() -> None:
    """Keep transformers from importing scikit-learn and scipy, and with them pandas.

    It fits a threshold of assisted generation with the one and matches boxes of pictures with the
    other; nothing here needs either. Transformers asks once whether they are there, scipy when it
    is imported itself, and keeps the answer. Whoever else imports them gets them as before.
    """
    with hidden("sklearn", "scipy"):
        from transformers.utils.import_utils import is_sklearn_available  # noqa: PLC0415 - see above

        is_sklearn_available()
