"""OpenAPI descriptions of the routes of agents, launches and accuracy."""

from __future__ import annotations

from service.cluster.gangs import LAUNCH_STATES
from service.handlers.launches import DEFAULT_LOG_PAGE, MAX_LOG_PAGE
from service.openapi.document import CHANGES, PAGING, READS, TEXT_TYPE, json_body, query, route

_REF = "#/components/schemas/"
_OWN = (400, 401, 403, 404, 408, 413, 415, 422, 429, 503)
"""Error statuses of an agent's own calls."""

post_token = route(
    {201: ("The token, shown only once", json_body("EnrolmentToken"))},
    CHANGES,
    body=json_body("TokenRequest"),
    body_required=False,
    create=True,
    status_code=201,
)
enrol = route(
    {201: ("The agent's id and key, shown only once", json_body("Enrolled"))},
    (400, 401, 403, 408, 413, 415, 422, 429, 503),
    body=json_body("EnrolRequest"),
    create=True,
    status_code=201,
)
list_agents = route({200: ("A page", json_body("AgentPage"))}, READS, parameters=PAGING)
get_agent = route({200: ("The agent", json_body("Agent"))}, (*READS, 404))
delete_agent = route({204: ("Forgotten", None)}, (*CHANGES, 404), status_code=204)
drain_agent = route(
    {200: ("The agent as it is now", json_body("Agent"))},
    (*CHANGES, 404),
    body=json_body("DrainRequest"),
    body_required=False,
)
heartbeat = route(
    {200: ("What the agent is to do", json_body("Heartbeat"))},
    _OWN,
    body=json_body("HeartbeatRequest"),
)
assignments = route(
    {200: ("The next assignment, or null when the time is up", json_body("NextAssignment"))},
    _OWN,
    parameters=[
        query("wait_s", {"type": "number", "minimum": 0, "default": 0}, "How long to wait for one.")
    ],
)
reports = route(
    {200: ("What became of each report", json_body("ReportsTaken"))},
    _OWN,
    body=json_body("ReportsRequest"),
)

post_launch = route(
    {201: ("The launch, queued", json_body("Launch"))},
    (*CHANGES, 404),
    body=json_body("LaunchRequest"),
    create=True,
    status_code=201,
)
list_launches = route(
    {200: ("A page", json_body("LaunchPage"))},
    READS,
    parameters=[
        *PAGING,
        query("state", {"type": "string", "enum": list(LAUNCH_STATES)}, "Only in this state."),
    ],
)
get_launch = route(
    {200: ("The launch with `assignments` and `runs`", json_body("Launch"))}, (*READS, 404)
)
delete_launch = route(
    {
        200: ("The launch as it is now", json_body("Launch")),
        204: ("Forgotten (`forget=true`)", None),
    },
    (*CHANGES, 404),
    parameters=[
        query(
            "forget",
            {"type": "boolean", "default": False},
            "Delete an ended launch with its output and what it measured.",
        )
    ],
)
judge_run = route({200: ("The launch as it is now", json_body("Launch"))}, (*CHANGES, 404))
launch_events = route(
    {
        200: (
            "Events until the launch ends",
            {"text/event-stream": {"schema": {"$ref": _REF + "LaunchEvent"}}},
        )
    },
    (*READS, 404),
)
get_logs = route(
    {200: ("Lines, and the `after` of the next page", json_body("LaunchLog"))},
    (*READS, 404),
    parameters=[
        query("after", {"type": "integer", "minimum": 0, "default": 0}, "Lines after this one."),
        query("rank", {"type": "integer", "minimum": 0, "maximum": 10**6}, "Only this rank's."),
        query(
            "limit",
            {"type": "integer", "minimum": 1, "maximum": MAX_LOG_PAGE, "default": DEFAULT_LOG_PAGE},
            "Lines of a page.",
        ),
    ],
)

get_accuracy = route(
    {200: ("The errors", json_body("Accuracy"))},
    READS,
    parameters=[
        query("graph", TEXT_TYPE, "Only of this graph."),
        query("hardware", TEXT_TYPE, "Only on this profile: its id or built-in name."),
    ],
)
post_refit = route(
    {
        201: ("The new version", json_body("Refitted")),
        200: ("The same version was fitted before", json_body("Refitted")),
    },
    (*CHANGES, 404),
    body=json_body("RefitRequest"),
    create=True,
    status_code=201,
)
get_versions = route(
    {200: ("A page", json_body("HardwareVersionPage"))}, (*READS, 404), parameters=PAGING
)
