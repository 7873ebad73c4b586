"""GET /o/…: the pages, and the routes for login and for the pages' script."""

from __future__ import annotations

import json
import sqlite3

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from harness.tracker.api import http
from harness.tracker.pages import groups, log_queries, login, polling, rank_queries, render, views
from harness.tracker.pages.login import guarded
from harness.tracker.pages.sessions import Session
from harness.tracker.query import run_filter, run_lists, run_queries
from harness.tracker.shared.requests import Refused, integer

TABS = {"": "Curves", "logs": "Logs", "files": "Files", "data": "Data", "config": "Config", "ranks": "Ranks"}


async def home(_request: Request) -> Response:
    return RedirectResponse(views.HOME, 303, render.HEADERS)


async def projects(request: Request, session: Session) -> Response:
    rows = await http.store(request).read(run_queries.projects)
    listed = [{**one, "at": views.address(one["name"])} for one in rows if session.opens(one["name"])]
    listed.sort(key=lambda one: one["updatedAt"], reverse=True)
    return render.page("projects", projects=listed)


async def project(request: Request, session: Session) -> Response:
    name, query = request.path_params["project"], request.query_params
    if not session.opens(name):
        raise Refused(404, "There is no such project, or your key has no access to it.")
    run_ids = [part for one in query.getlist("runs") for part in one.split(",") if part]
    if run_ids:
        return await _compare(request, name, [integer(one, "runs") for one in run_ids])
    status, search, offset = (
        query.get("status", ""),
        query.get("search", ""),
        http.number(request, "offset", 0),
    )
    listing = run_lists.Listing(
        project=name,
        search=search,
        sort=query.get("sort", "-createdAt"),
        limit=views.RUNS_PAGE,
        offset=offset,
        filter=run_filter.read(json.dumps({"status": status})) if status else None,
    )
    rows, total = await http.store(request).scan(lambda db: run_lists.runs(db, listing))
    if not total and not (search or status) and name not in await _names(request):
        raise Refused(404, "There is no such project, or your key has no access to it.")
    runs = [{**one, "at": views.address(name, one["id"])} for one in rows]
    return render.page(
        "project",
        name=name,
        runs=runs,
        total=total,
        offset=offset,
        page=views.RUNS_PAGE,
        search=search,
        status=status,
        sort=listing.sort,
        at=views.address(name),
    )


async def _names(request: Request) -> list[str]:
    return [one["name"] for one in await http.store(request).read(run_queries.projects)]


async def _compare(request: Request, project: str, ids: list[int]) -> Response:
    if len(set(ids)) > views.MAX_COMPARED:
        raise Refused(400, f"At most {views.MAX_COMPARED} runs can be compared.")
    search = request.query_params.get("metrics", "")

    def read(db: sqlite3.Connection) -> Response:
        rows, config = views.compared(db, project, ids)
        charts, omitted = views.charts(db, rows, search)
        heads = [views.head(db, row) for row in rows]
        return render.page("compare", runs=heads, project=project, config=config, charts=charts, more=omitted,
                           search=search, at=views.address(project))  # fmt: skip

    return await http.store(request).scan(read)


async def run(request: Request, session: Session) -> Response:
    name, run_id = request.path_params["project"], request.path_params["run_id"]
    tab = request.path_params.get("tab", "")
    if tab not in TABS or not session.opens(name):
        raise Refused(404, "There is no such page, or your key has no access to it.")
    key, query = request.app.state.key, request.query_params
    offset, before = http.number(request, "offset", 0), http.optional_number(request, "before")

    def read(db: sqlite3.Connection) -> Response:
        row = views.run_of(db, name, integer(run_id, "run"))
        common = {"run": views.head(db, row), "tab": tab, "tabs": TABS, "pulse": rank_queries.pulse(db, row)}
        if tab == "":
            search = query.get("metrics", "")
            charts, omitted = views.charts(db, [row], search)
            return render.page("curves", **common, charts=charts, more=omitted, search=search)
        if tab == "logs":
            filters = {one: query.get(one, "") for one in ("sender", "kind", "search")}
            log_page = log_queries.lines(db, row["id"], **filters, before=before, after=0)
            senders = log_queries.senders(db, row["id"])
            return render.page("logs", **common, found=log_page, senders=senders, most=log_queries.LOG_LINES,
                               before=before, **filters)  # fmt: skip
        if tab == "files":
            pictures, other_files, total = views.files(db, row["id"], key, offset)
            return render.page("files", **common, pictures=pictures, others=other_files, total=total,
                               offset=offset, page=views.FILES_PAGE)  # fmt: skip
        if tab == "data":
            return render.page("data", **common, found=views.data(db, row["id"]))
        if tab == "config":
            names = {"Config": "config", "System": "system_metadata", "Client": "logger_settings"}
            parts = {title: groups.flat(json.loads(row[one] or "null")) for title, one in names.items()}
            return render.page("config", **common, parts=parts)
        found_ranks = rank_queries.ranks(db, row, session.project)
        return render.page("ranks", **common, found=found_ranks, address=views.address)

    return await http.store(request).scan(read)


async def asset(request: Request) -> Response:
    name = request.path_params["name"]
    if name not in render.STATIC:
        raise Refused(404, "Not Found")
    return render.static(name)


RUN = f"{views.HOME}/{{project:path}}/r{{run_id:int}}"
routes = [
    Route("/", home),
    *login.routes,
    Route("/pages/static/{name}", asset),
    *polling.routes,
    Route(views.HOME, guarded(projects)),
    Route(RUN, guarded(run)),
    Route(f"{RUN}/{{tab}}", guarded(run)),
    Route(f"{views.HOME}/{{project:path}}", guarded(project)),
]
