"""Routing of paths to endpoints."""

import pytest

from tidegate.web.app.auth import Credentials
from tidegate.web.app.endpoint import Endpoint, PathApp, Routes
from tidegate.web.app.http_request import RequestBodies

PATHS = ("/", "/api/sessions", "/api/sessions/{id}", "/api/sessions/{id}/events", "/static/{name:path}", "/v1/a.b")


@pytest.fixture
def routes() -> Routes:
    credentials: Credentials = None  # type: ignore[assignment]  # no test authenticates
    return Routes(
        {
            path: PathApp([Endpoint(method="GET", path=path, summary="")], credentials, RequestBodies(1))
            for path in PATHS
        }
    )


@pytest.mark.parametrize(
    ("path", "template", "values"),
    [
        ("/", "/", {}),
        ("/api/sessions", "/api/sessions", {}),
        ("/api/sessions/s_1", "/api/sessions/{id}", {"id": "s_1"}),
        ("/api/sessions/a b\nc", "/api/sessions/{id}", {"id": "a b\nc"}),
        ("/api/sessions/s_1/events", "/api/sessions/{id}/events", {"id": "s_1"}),
        ("/static/a/b.js", "/static/{name:path}", {"name": "a/b.js"}),
        ("/static/", "/static/{name:path}", {"name": ""}),
    ],
)
def test_a_path_leads_to_its_declared_endpoint(
    routes: Routes, path: str, template: str, values: dict[str, str]
) -> None:
    """H20: the values of parameters are passed unchanged."""
    found = routes.find(path)
    assert found is not None
    assert (found.path, found.values) == (template, values)


@pytest.mark.parametrize(
    "path", ["", "/api", "/api/sessions/", "/api/sessions//events", "/api/sessions/a/b/events", "/static", "/v1/aXb"]
)
def test_an_undeclared_path_has_no_route(routes: Routes, path: str) -> None:
    """H20: paths are never completed, redirected or guessed."""
    assert routes.find(path) is None


def test_a_literal_path_has_priority_over_a_template() -> None:
    """H20: whichever was declared first."""
    credentials: Credentials = None  # type: ignore[assignment]
    apps = {path: PathApp([], credentials, RequestBodies(1)) for path in ("/a/{id}", "/a/new")}
    found = Routes(apps).find("/a/new")
    assert found is not None
    assert found.path == "/a/new"
