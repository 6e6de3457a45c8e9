"""A bad input is refused with a message that helps, or taken as it is."""

import math
import re
from collections.abc import Callable
from typing import Any

from tests.properties.examples import examples
from training_core.errors import RatchetError

laws = examples(120)

EXPECTATION = re.compile(
    "expected|[Ii]nput should|is not|cannot be read|unknown|there is no|missing|needs the|takes no"
)
REMEDY = re.compile(r";|did you mean|there are:")


def told(call: Callable[[], Any], names: str = "") -> Any:
    """Return the result of `call`, or None if it is refused with a message that helps."""
    try:
        return call()
    except RatchetError as error:
        message = str(error)
        assert EXPECTATION.search(message), message
        assert REMEDY.search(message), message
        assert names in message, message
        return None


def finite(value: Any) -> bool:
    if isinstance(value, dict):
        return all(map(finite, value.values()))
    if isinstance(value, list):
        return all(map(finite, value))
    return not isinstance(value, float) or math.isfinite(value)
