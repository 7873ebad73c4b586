"""A Pluto-compatible tracker that keeps every raw row, and readers that take its rows for the evidence.

Server (standard library, starlette, uvicorn, jinja2):  python3 -m harness.tracker
    routes_*  →  runs, ingest, files, reads, series, audit_view  →  store, schema
    pages/    →  the same reads, as web pages
Readers (httpx, pydantic):  audit, hosted
Neither imports the other: the server parts are copied alone into a small image.
"""
