# SPDX-License-Identifier: Apache-2.0
"""What is answered where there is no such route, as the caller's API writes errors."""

from __future__ import annotations

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Match, Route

from ..errors import VALIDATION, ApiError
from . import openai, tei

NOT_ALLOWED = 405


async def no_route(request: Request, error: Exception) -> Response:
    """404 and 405, with the routes or methods that there are."""
    assert isinstance(error, HTTPException)
    routes = [route for route in request.app.router.routes if isinstance(route, Route)]
    here = [route for route in routes if route.matches(request.scope)[0] is not Match.NONE]
    request_line = f"{request.method} {request.url.path:.200}"
    headers = dict(error.headers or {})
    if error.status_code == NOT_ALLOWED:
        methods = ", ".join(sorted(set().union(*(route.methods or () for route in here))))
        headers["Allow"] = methods  # starlette knows those of one route
        message = f"{request_line}: allowed: {methods}"
    else:
        paths = dict.fromkeys(route.path for route in routes if "{" not in route.path)
        message = f"{request_line}: no such route; there are {', '.join(paths)}"
    style = openai.error_body if request.url.path.startswith("/v") else tei.error_body
    return JSONResponse(style(ApiError(error.status_code, VALIDATION, message)), error.status_code, headers)
