"""A Pluto-compatible experiment tracker that stores every row it receives, and clients that read the rows as
evidence.

Server (standard library, starlette, uvicorn, jinja2):  python3 -m harness.tracker
    server  →  api, pages  →  query  →  storage  →  shared
Clients (httpx, pydantic):  client  →  shared
The server and the clients do not import each other, because the server's image does not contain the clients'
dependencies. Besides this package, the image contains only the rules for secrets
(harness/core/secret_rules.py) and harness/core/terminal_{row,text}.py.
"""
