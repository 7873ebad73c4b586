"""A Pluto-compatible tracker that keeps every raw row, and readers that take its rows for the evidence.

Server (standard library, starlette, uvicorn, jinja2):  python3 -m harness.tracker
    server  →  api, pages  →  query  →  storage  →  shared
Clients (httpx, pydantic):  client  →  shared
Neither imports the other: the server has an image of its own, without the rest of the harness.
"""
