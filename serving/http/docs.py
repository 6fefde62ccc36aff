# SPDX-License-Identifier: Apache-2.0
"""/openapi.json, and /docs: a page of it that needs nothing from elsewhere."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator
from html import escape
from typing import Any

import orjson
from padfree.runtime.text import ServedModel
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from ..options import ServeOptions
from .openapi import description

STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8881; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 52rem; margin: 0 auto; padding: 1rem; overflow-wrap: anywhere; }
h1 { font-size: 1.4rem; } h3 { font-size: 1rem; margin: 1rem 0 .2rem; }
details { border: 1px solid var(--line); border-radius: 6px; margin: .5rem 0; padding: .4rem .8rem; }
summary { cursor: pointer; } code, pre, textarea { font: 14px/1.45 ui-monospace, monospace; }
pre { background: var(--soft); padding: .6rem; margin: .3rem 0; overflow: auto; max-height: 24rem; }
textarea { width: 100%; box-sizing: border-box; min-height: 9rem; }
table { border-collapse: collapse; } th, td:first-child { white-space: nowrap; }
td, th { text-align: left; vertical-align: top; padding: .15rem .8rem .15rem 0; }
input { width: 100%; max-width: 24rem; box-sizing: border-box; }
"""
SCRIPT = """
for (const form of document.querySelectorAll("form")) {
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const shown = form.querySelector("pre"), body = form.querySelector("textarea");
    const key = document.querySelector("#key"), headers = {};
    if (key && key.value) headers.authorization = "Bearer " + key.value;
    if (body) headers["content-type"] = "application/json";
    shown.hidden = false;
    shown.textContent = "...";
    try {
      const options = { method: form.dataset.method, headers: headers, body: body ? body.value : undefined };
      const answer = await fetch(form.dataset.path, options);
      let text = await answer.text();
      try { text = JSON.stringify(JSON.parse(text), null, 1); } catch (error) { /* no JSON */ }
      const more = text.length > 20000 ? "\\n..." : "";
      shown.textContent = answer.status + " " + answer.statusText + "\\n" + text.slice(0, 20000) + more;
    } catch (error) { shown.textContent = String(error); }
  });
}
"""
POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; img-src data:; script-src 'sha256-"
    + base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    + "'"
)


class Docs:
    """The routes, open to everybody: a browser sends no key with a page's address.

    Args:
        served_model: the model.
        options: limits, and whether there are keys.
    """

    def __init__(self, served_model: ServedModel, options: ServeOptions) -> None:
        self._has_docs = options.docs
        document = description(served_model, options) if options.docs else {}
        self._json = orjson.dumps(document)
        self._page = page(document) if options.docs else ""

    def routes(self) -> list[Route]:
        """Paths and endpoints."""
        return [Route("/openapi.json", self._openapi), Route("/docs", self._docs)] if self._has_docs else []

    async def _openapi(self, _request: Request) -> Response:
        return Response(self._json, media_type="application/json")

    async def _docs(self, _request: Request) -> Response:
        return HTMLResponse(self._page, headers={"content-security-policy": POLICY})


def page(document: dict[str, Any]) -> str:
    """The page of a description."""
    info = document["info"]
    parts = [
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f'<link rel="icon" href="data:,"><title>{escape(info["title"])}</title><style>{STYLE}</style></head><body>',
        f"<h1>{escape(info['title'])}</h1><p>{escape(info['description'])}</p>",
        f'<p>padfree {escape(info["version"])}, <a href="openapi.json">openapi.json</a></p>',
    ]
    if "security" in document:
        parts.append('<p><label>API key <input id="key" type="password" autocomplete="off"></label></p>')
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            parts.extend(_operation(method.upper(), path, operation))
    return "".join([*parts, f"<script>{SCRIPT}</script></body></html>"])


def _operation(method: str, path: str, operation: dict[str, Any]) -> Iterator[str]:
    yield f"<details><summary><code>{method} {escape(path)}</code> {escape(operation['summary'])}</summary>"
    example = ""
    if "requestBody" in operation:
        content = operation["requestBody"]["content"]["application/json"]
        example = json.dumps(content["example"], ensure_ascii=False, indent=1)
        yield "<h3>Body</h3><table><tr><th>field</th><th>takes</th></tr>"
        for name, schema in content["schema"]["properties"].items():
            required_text = " (required)" if name in content["schema"]["required"] else ""
            yield f"<tr><td><code>{escape(name)}</code>{required_text}</td><td>{escape(_explain(schema))}</td></tr>"
        yield "</table>"
    yield "<h3>Answers</h3><table><tr><th>status</th><th>when</th></tr>"
    for status, response in operation["responses"].items():
        yield f"<tr><td>{status}</td><td>{escape(response['description'])}</td></tr>"
    contents = operation["responses"]["200"].get("content", {})
    schema = next((content["schema"] for content in contents.values()), None)
    yield "</table>" + (f"<p>200 gives {escape(takes(schema))}.</p>" if schema else "")
    body = f"<textarea spellcheck=false aria-label=body>{escape(example)}</textarea>" if example else ""
    yield f'<form data-method="{method}" data-path="{escape(path.lstrip("/"))}">{body}'
    yield "<button>Send</button><pre hidden></pre></form></details>"


def _explain(schema: dict[str, Any]) -> str:
    return takes(schema) + (f": {schema['description']}" if "description" in schema else "")


def takes(schema: dict[str, Any]) -> str:
    """A schema in words."""
    if "anyOf" in schema:
        return ", or ".join(map(takes, schema["anyOf"]))
    if "enum" in schema:
        return " or ".join(schema["enum"])
    kind = schema["type"]
    if kind == "array":
        most = f" (at most {schema['maxItems']})" if "maxItems" in schema else ""
        return f"a list{most}, each {takes(schema['items'])}"
    if kind == "object":
        fields = schema.get("properties", {})
        return "an object" + (f" with {', '.join(fields)}" if fields else "")
    names = {"string": "a text", "number": "a number", "integer": "a whole number", "boolean": "true or false"}
    type_text = names.get(kind, "a whole number or null") if isinstance(kind, str) else "a whole number or null"
    return type_text + (f" (default {json.dumps(schema['default'])})" if "default" in schema else "")
