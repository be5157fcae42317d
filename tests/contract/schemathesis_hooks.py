"""Loaded by schemathesis: leads most of what it generates past the first check, and past what is meant to fail."""

from typing import Any

import schemathesis


@schemathesis.hook
def before_call(context: schemathesis.HookContext, case: "schemathesis.Case[Any]", arguments: dict[str, Any]) -> None:
    """Ask for the served model, and with the gateway's own deadline.

    Short names stay as they were generated, for the 404. A generated deadline is over before anything can be answered,
    which is a right 504.
    """
    model = case.body.get("model") if isinstance(case.body, dict) else None
    if isinstance(case.body, dict) and isinstance(model, str) and len(model) > 3:
        case.body["model"] = "all-MiniLM-L6-v2"
    if case.headers:
        case.headers.pop("x-request-timeout-s", None)
