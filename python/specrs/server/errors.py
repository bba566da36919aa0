"""What goes wrong, in the form of OpenAI's API."""

from __future__ import annotations

from typing import Any

from .._specrs import ContextOverflow

FINAL = {"X-Should-Retry": "false"}
"""Where to try again would not help; clients of OpenAI's API do so otherwise."""


NAMED = ("tools", "tool_choice", "parallel_tool_calls", "messages")
"""Arguments that are called as the parameters are."""


class ApiError(Exception):
    """An answer that is an error.

    Args:
        status: Of HTTP.
        kind: The error's "type".
        message: What, where, and the way out.
        param: The parameter at fault.
        code: What programs branch on.
        headers: More headers of the answer.
        more: More members of the error.
    """

    def __init__(
        self,
        status: int,
        kind: str,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
        **more: Any,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.message = message
        self.param = param
        self.code = code
        self.headers = headers or {}
        self.more = more

    def body(self) -> dict[str, Any]:
        """Return the JSON object to send."""
        error = {
            "message": self.message,
            "type": self.kind,
            "param": self.param,
            "code": self.code,
            **self.more,
        }
        return {"error": error}


def invalid(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """Return the error of a request that is wrong in itself."""
    return ApiError(400, "invalid_request_error", message, param=param, code=code)


def refused(param: str, message: str) -> ApiError:
    """Return the error of a parameter that is known and not offered."""
    return invalid(message, param, "unsupported_parameter")


def not_offered(message: str, param: str | None = None) -> ApiError:
    """Return the error of what this server cannot do."""
    return ApiError(501, "not_supported_error", message, param=param, headers=FINAL)


def unavailable(message: str) -> ApiError:
    """Return the error of a server that is loading or leaving."""
    return ApiError(503, "unavailable_error", message, headers={"Retry-After": "2"})


def internal(message: str = "the server failed; its log says more") -> ApiError:
    """Return the error of a fault of ours."""
    return ApiError(500, "server_error", message, headers=FINAL)


def too_long(n_prompt_tokens: int, n_ctx: int) -> ApiError:
    """Return the error of a prompt that leaves no room in the context.

    Its type is that of llama.cpp, whose clients look for it; its code is OpenAI's.
    """
    return ApiError(
        400,
        "exceed_context_size_error",
        f"This model's maximum context length is {n_ctx} tokens; the prompt of {n_prompt_tokens} "
        "tokens exceeds the available context size. Shorten it, or serve with a larger --n-ctx",
        code="context_length_exceeded",
        n_prompt_tokens=n_prompt_tokens,
        n_ctx=n_ctx,
    )


def of_preparing(error: Exception, param: str | None = None) -> ApiError:
    """Return the answer to what went wrong before a request was queued: the client's mistakes.

    The library's messages begin with the argument at fault; where that is a parameter, it is named.
    """
    first = str(error).partition(" ")[0]
    param = first if first in NAMED else param
    if isinstance(error, ApiError):
        return error
    if isinstance(error, ContextOverflow):
        return too_long(error.needed - 1, error.n_ctx)
    if isinstance(error, MemoryError):
        return invalid(str(error), param, "context_length_exceeded")
    if isinstance(error, NotImplementedError):
        return not_offered(str(error), param)
    if isinstance(error, (TypeError, ValueError)):
        return invalid(str(error), param)
    raise error
