"""Optional packages that transformers and accelerate import although Ratchet does not use them.

Each import takes one or two seconds in every stage process.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def hidden(*packages: str) -> Iterator[None]:
    """Make packages look as if they were not installed, inside the `with` block.

    A package that is imported already does not change, because its objects may be in use.

    Args:
        packages: top-level names, e.g. `sklearn`.
    """
    absent = [name for name in packages if name not in sys.modules]
    modules: dict[str, Any] = sys.modules
    modules.update(dict.fromkeys(absent))  # None makes the import of a name fail
    try:
        yield
    finally:
        for name in absent:
            del modules[name]


def tell_transformers_to_do_without() -> None:
    """Keep transformers from importing scikit-learn and scipy, and with them pandas.

    Transformers uses scikit-learn for assisted generation and scipy for object detection; Ratchet
    does neither. Transformers checks only once whether they are installed (scipy during its own
    import) and keeps the result. Other modules can still import both packages.
    """
    with hidden("sklearn", "scipy"):
        from transformers.utils.import_utils import is_sklearn_available  # noqa: PLC0415 - see above

        is_sklearn_available()
