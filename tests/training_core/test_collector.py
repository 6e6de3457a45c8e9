import gc
import subprocess
import sys

import pytest

from training_core.collector import paused_collector


def test_the_collector_rests_inside_and_works_again_afterwards():
    assert gc.isenabled()
    with pytest.raises(KeyError), paused_collector():
        assert not gc.isenabled()
        raise KeyError
    assert gc.isenabled()


def test_a_collector_that_was_off_stays_off():
    gc.disable()
    try:
        with paused_collector():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


EXEMPT = """
import gc
from training_core.collector import exempt_present_objects
class Link: pass
link = Link(); link.itself = link; del link
kept = [[i] for i in range(1000)]
exempt_present_objects()
assert not any(isinstance(each, Link) for each in gc.get_objects())
assert gc.get_freeze_count() > 1000
"""


def test_what_is_exempt_holds_no_garbage():
    subprocess.run([sys.executable, "-c", EXEMPT], check=True)
