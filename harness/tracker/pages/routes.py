"""GET /o/… and /pages/…: the pages, what their script asks for, and the door before them."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Awaitable, Callable
from urllib.parse import parse_qs, quote

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from harness.tracker import bodies, curves, http, reads, run_filter
from harness.tracker.http import Json, Refused
from harness.tracker.pages import groups, reading, render, sessions, views
from harness.tracker.pages.sessions import Session

Handler = Callable[[Request, Session], Awaitable[Response]]
TABS = {"": "Curves", "logs": "Logs", "files": "Files", "data": "Data", "config": "Config", "ranks": "Ranks"}
FORM_MOST = 16 << 10
SERIES_MOST = 64
BUCKETS = 300
NO_STORE = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}


def guarded(handler: Handler, *, shown: bool = True) -> Callable[[Request], Awaitable[Response]]:
    """Return the handler behind the door. Without a session a page leads to /login, and data is 401."""

    async def handle(request: Request) -> Response:
        session = sessions.of(request)
        if session is None:
            if not shown:
                raise Refused(401, "log in again")
            wanted = quote(request.scope["path"])
            wanted += f"?{request.url.query}" if request.url.query else ""
            return RedirectResponse(f"/login?next={quote(wanted, safe='')}", 303, render.HEADERS)
        try:
            return await handler(request, session)
        except Refused as error:
            if not shown:
                raise
            return render.page("error", error.status_code, status=error.status_code, reason=error.detail)

    return handle


async def login(request: Request) -> Response:
    """Show the form, or take a link's secret."""
    if sessions.of(request) is not None:
        return _go(request)
    once = request.query_params.get("once")
    if once is not None:
        if request.app.state.links.take(once):
            answer = _go(request)
            sessions.give(request, answer, Session())
            return answer
        why = "This link was used, or its time is over. `harness tracker open` prints a new one."
        return render.page("login", 403, why=why, next=_next(request))
    return render.page("login", why="", next=_next(request))


async def log_in(request: Request) -> Response:
    """Take the form."""
    if not sessions.from_here(request):
        return render.page("login", 403, why="This form was sent by another site.", next=views.HOME)
    async with bodies.body(request, FORM_MOST) as text:
        fields = parse_qs(text.decode(errors="replace"))
    session = sessions.by_key(fields.get("key", [""])[0], request.app.state.key)
    if session is None:
        return render.page("login", 401, why="The tracker does not accept this key.", next=_next(request))
    answer = _go(request)
    sessions.give(request, answer, session)
    return answer


async def log_out(request: Request) -> Response:
    answer = RedirectResponse("/login", 303, render.HEADERS)
    if sessions.from_here(request):
        sessions.end(request, answer)
    return answer


async def make_link(request: Request) -> Response:
    """Answer, to who has the tracker's own key, a secret that opens a session once."""
    return Json({"once": request.app.state.links.make(), "seconds": sessions.LINK_SECONDS})


def _next(request: Request) -> str:
    """Return where to go after the login: a page of ours and nowhere else."""
    wanted = request.query_params.get("next", "")
    safe = wanted.startswith(f"{views.HOME}/") and "\\" not in wanted and wanted.isprintable()
    return wanted if safe else views.HOME


def _go(request: Request) -> Response:
    return RedirectResponse(quote(_next(request), safe="/?&=%~+,:;@!*'()"), 303, render.HEADERS)


async def home(_request: Request) -> Response:
    return RedirectResponse(views.HOME, 303, render.HEADERS)


async def projects(request: Request, session: Session) -> Response:
    found = await http.store(request).read(reads.projects)
    shown = [{**one, "at": views.address(one["name"])} for one in found if session.opens(one["name"])]
    shown.sort(key=lambda one: one["updatedAt"], reverse=True)
    return render.page("projects", projects=shown)


async def project(request: Request, session: Session) -> Response:
    name, query = request.path_params["project"], request.query_params
    if not session.opens(name):
        raise Refused(404, "There is no such project, or your key does not open it.")
    chosen = [part for one in query.getlist("runs") for part in one.split(",") if part]
    if chosen:
        return await _compare(request, name, [http.integer(one, "runs") for one in chosen])
    status, search, offset = (
        query.get("status", ""),
        query.get("search", ""),
        http.number(request, "offset", 0),
    )
    listing = reads.Listing(
        project=name,
        search=search,
        sort=query.get("sort", "-createdAt"),
        limit=views.RUNS_PAGE,
        offset=offset,
        filter=run_filter.read(json.dumps({"status": status})) if status else None,
    )
    found, total = await http.store(request).scan(lambda db: reads.runs(db, listing))
    if not total and not (search or status) and name not in await _names(request):
        raise Refused(404, "There is no such project, or your key does not open it.")
    runs = [{**one, "at": views.address(name, one["id"])} for one in found]
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
    return [one["name"] for one in await http.store(request).read(reads.projects)]


async def _compare(request: Request, project: str, ids: list[int]) -> Response:
    if len(set(ids)) > views.COMPARED_MOST:
        raise Refused(400, f"At most {views.COMPARED_MOST} runs can be compared.")
    search = request.query_params.get("metrics", "")

    def read(db: sqlite3.Connection) -> Response:
        rows, config = views.compared(db, project, ids)
        charts, more = views.charts(db, rows, search)
        heads = [views.head(db, row) for row in rows]
        return render.page("compare", runs=heads, project=project, config=config, charts=charts, more=more,
                           search=search, at=views.address(project))  # fmt: skip

    return await http.store(request).scan(read)


async def run(request: Request, session: Session) -> Response:
    name, run_id = request.path_params["project"], request.path_params["run_id"]
    tab = request.path_params.get("tab", "")
    if tab not in TABS or not session.opens(name):
        raise Refused(404, "There is no such page, or your key does not open it.")
    key, query = request.app.state.key, request.query_params
    offset, before = http.number(request, "offset", 0), http.optional_number(request, "before")

    def read(db: sqlite3.Connection) -> Response:
        row = views.run_of(db, name, http.integer(run_id, "run"))
        shown = {"run": views.head(db, row), "tab": tab, "tabs": TABS, "pulse": reading.pulse(db, row)}
        if tab == "":
            search = query.get("metrics", "")
            charts, more = views.charts(db, [row], search)
            return render.page("curves", **shown, charts=charts, more=more, search=search)
        if tab == "logs":
            chosen = {one: query.get(one, "") for one in ("sender", "kind", "search")}
            found = reading.lines(db, row["id"], **chosen, before=before, after=0)
            senders = reading.senders(db, row["id"])
            return render.page("logs", **shown, lines=found, senders=senders, most=reading.LOG_LINES,
                               before=before, **chosen)  # fmt: skip
        if tab == "files":
            pictures, others, total = views.files(db, row["id"], key, offset)
            return render.page("files", **shown, pictures=pictures, others=others, total=total, offset=offset,
                               page=views.FILES_PAGE)  # fmt: skip
        if tab == "data":
            return render.page("data", **shown, found=views.data(db, row["id"]))
        if tab == "config":
            names = {"Config": "config", "System": "system_metadata", "Client": "logger_settings"}
            parts = {title: groups.flat(json.loads(row[one] or "null")) for title, one in names.items()}
            return render.page("config", **shown, parts=parts)
        found_ranks = reading.ranks(db, row, session.project)
        return render.page("ranks", **shown, found=found_ranks, address=views.address)

    return await http.store(request).scan(read)


async def curve_data(request: Request, session: Session) -> Response:
    """Answer `{"series": […]}` for each `series=RUN:NAME`, in the order of the question."""
    wanted = [one.partition(":") for one in request.query_params.getlist("series")]
    if not 1 <= len(wanted) <= SERIES_MOST:
        raise Refused(400, f"series: expected 1 to {SERIES_MOST} times RUN:NAME")
    pairs = [(http.integer(run, "series"), name) for run, _, name in wanted]
    buckets = http.number(request, "buckets", BUCKETS, curves.MOST_BUCKETS)
    first, until = http.number(request, "first", 0), http.optional_number(request, "last")

    def read(db: sqlite3.Connection) -> Response:
        found = []
        for number, name in pairs:
            _seen(db, session, number)
            made = curves.curve(db, number, name, buckets, first, until)
            rows = [[b.first, b.last, b.low, b.high, b.mean, b.odd] for b in made.buckets]
            found.append(
                {"run": number, "name": name, "points": made.points, "exact": made.exact, "buckets": rows}
            )
        return Json({"series": found})

    return _private(await http.store(request).scan(read))


async def pulse_data(request: Request, session: Session) -> Response:
    ids = http.numbers(request, "runs")[: views.COMPARED_MOST]

    def read(db: sqlite3.Connection) -> Response:
        return Json({"runs": [reading.pulse(db, _seen(db, session, one)) for one in ids]})

    return _private(await http.store(request).read(read))


async def log_data(request: Request, session: Session) -> Response:
    query, run_id = request.query_params, http.number(request, "run")
    chosen = {one: query.get(one, "") for one in ("sender", "kind", "search")}
    after = http.number(request, "after", 0)

    def read(db: sqlite3.Connection) -> Response:
        _seen(db, session, run_id)
        return Json({"lines": reading.lines(db, run_id, **chosen, before=None, after=after)})

    return _private(await http.store(request).scan(read))


def _seen(db: sqlite3.Connection, session: Session, run_id: int) -> sqlite3.Row:
    """Return a run that the session opens. Raises Refused 404."""
    row = reads.run(db, run_id)
    if not session.opens(row["project"]):
        raise Refused(404, "Run not found")
    return row


def _private(answer: Response) -> Response:
    answer.headers.update(NO_STORE)
    return answer


async def asset(request: Request) -> Response:
    name = request.path_params["name"]
    if name not in render.STATIC:
        raise Refused(404, "Not Found")
    return render.static(name)


RUN = f"{views.HOME}/{{project:path}}/r{{run_id:int}}"
routes = [
    Route("/", home),
    Route("/login", login, methods=["GET"]),
    Route("/login", log_in, methods=["POST"]),
    Route("/logout", log_out, methods=["POST"]),
    Route("/api/pages/link", make_link, methods=["POST"]),
    Route("/pages/static/{name}", asset),
    Route("/pages/curves", guarded(curve_data, shown=False)),
    Route("/pages/pulse", guarded(pulse_data, shown=False)),
    Route("/pages/logs", guarded(log_data, shown=False)),
    Route(views.HOME, guarded(projects)),
    Route(RUN, guarded(run)),
    Route(f"{RUN}/{{tab}}", guarded(run)),
    Route(f"{views.HOME}/{{project:path}}", guarded(project)),
]
