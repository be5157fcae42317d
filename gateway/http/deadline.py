"""How long a caller wants to wait: the header `x-request-timeout-s`. Called by routes; pure."""

import math

from starlette.datastructures import Headers

from gateway.errors import InvalidRequest

TIMEOUT_HEADER = "x-request-timeout-s"


def read_timeout(headers: Headers, most_s: float) -> float:
    """Return the request's deadline in seconds: the caller's wish, but at most `most_s`.

    Raises:
        InvalidRequest: the header is not a positive number.
    """
    wish = headers.get(TIMEOUT_HEADER)
    if wish is None:
        return most_s
    try:
        timeout_s = float(wish)
    except ValueError:
        timeout_s = math.nan
    if not timeout_s > 0:
        raise InvalidRequest(f"The header `{TIMEOUT_HEADER}` must be a positive number of seconds.")
    return min(timeout_s, most_s)
