"""The answers to the canvas, by the part of the timeline that it asks for."""

from __future__ import annotations

from http import HTTPStatus

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from diag.app.timeline_data.asked import RefusedError
from diag.app.timeline_data.events import event, find, tally
from diag.app.timeline_data.overlays import overlays, path, span
from diag.app.timeline_data.perfetto import together, trace
from diag.app.timeline_data.source import source_of
from diag.app.timeline_data.tiles import ranks_tile, rows_tile

_ANSWERS = {
    "ranks": ranks_tile,
    "rows": rows_tile,
    "event": event,
    "find": find,
    "tally": tally,
    "trace": trace,
    "together": together,
    "path": path,
    "overlays": overlays,
    "span": span,
}


def answer(request: Request) -> Response:
    """The answer to a request of the canvas; an error message if there is none."""
    handler = _ANSWERS.get(request.path_params["what"])
    if handler is None:
        return JSONResponse({"error": "there is no such part of the timeline"}, status_code=HTTPStatus.NOT_FOUND)
    try:
        return handler(source_of(request.query_params.get("source", "")), request.query_params)
    except RefusedError as refusal:
        return JSONResponse({"error": str(refusal)}, status_code=refusal.status)
