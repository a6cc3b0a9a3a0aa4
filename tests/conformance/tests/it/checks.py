"""What the scripts that drive packages check with."""

import time

PATIENCE = 60.0


def eventually(what, is_so):
    deadline = time.monotonic() + PATIENCE
    while not (found := is_so()):
        assert time.monotonic() < deadline, f"waited in vain until {what}"
        time.sleep(0.01)
    return found


def raises(kind, act):
    try:
        act()
    except kind as error:
        return error
    raise AssertionError(f"{kind.__name__} was expected")


def same(found, expected):
    assert found == expected, f"{found!r} is not {expected!r}"
