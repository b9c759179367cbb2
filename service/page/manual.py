"""`/manual/`: the documentation that is in `docs_dir`, and which page of it belongs to which view.

Its pages may run their own scripts only: those of its files, and those inside a page by their
hashes. Sphinx writes styles into attributes, so inline styles are allowed there.
"""

from __future__ import annotations

from collections.abc import Mapping

from fastapi import Request, Response

from service.base.docs_tree import DocsTree
from service.base.problems import not_found
from service.edge.state import state_of
from service.page.assets import file_response

ROOT = "/manual/"
POLICY = (
    "default-src 'none'; script-src 'self'{scripts}; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; font-src 'self'; connect-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
_CONCEPTS = ("concepts", "Concepts")
_GLOSSARY = ("glossary", "Glossary")
_CERTIFICATES = ("certificates", "Certificates and confidence")
_PAGE = ("page", "The page")
_PIPELINES = ("pipelines", "Pipelines")

TOPICS: Mapping[str, tuple[tuple[str, str], ...]] = {
    "ask.html": (_PAGE, _CONCEPTS, ("strategies", "Strategies"), ("presets", "Presets"), _GLOSSARY),
    "frontier.html": (_CONCEPTS, _CERTIFICATES, ("replay", "Replay"), _PIPELINES, _GLOSSARY),
    "curve.html": (
        _CONCEPTS, ("how-to/scheduler", "Share a cluster"), _CERTIFICATES, _PIPELINES, _GLOSSARY,
    ),
    "plan.html": (
        ("strategies", "Strategies"), _CERTIFICATES,
        ("how-to/trainers", "From a plan to a trainer"),
        ("replay", "Replay"), _GLOSSARY,
    ),
    "pipeline.html": (
        _PIPELINES, _CERTIFICATES, ("replay", "Replay"), _GLOSSARY,
    ),
    "pricing.html": (
        ("how-to/price", "Price my configuration"), ("trainers", "Plans for trainers"), _GLOSSARY,
    ),
    "quote.html": (("how-to/cloud", "Find the cheapest machines"), _CERTIFICATES, _PIPELINES),
    "comparison.html": (("compare", "Compare"), _CERTIFICATES, ("methods", "Methods")),
    "infeasible.html": (_CONCEPTS, ("limits", "Limits")),
    "job.html": (("service", "The service"),),
    "jobs.html": (("service", "The service"),),
    "compare.html": (_PAGE, _CONCEPTS),
    "graphs.html": (
        ("how-to/trainer", "From a model to a run"), ("onnx", "ONNX files"), ("models", "Models"),
    ),
    "hardware.html": (("hardware", "Hardware"), ("how-to/hardware", "Add my GPU")),
    "profile.html": (("hardware", "Hardware"), ("measuring", "Measuring")),
    "agents.html": (("agents", "Agents"),),
    "agent.html": (("agents", "Agents"),),
    "agent_token.html": (("agents", "Agents"),),
    "launches.html": (("agents", "Agents"), ("execute", "Running a plan")),
    "launch.html": (("agents", "Agents"), ("execute", "Running a plan")),
    "launch_form.html": (("agents", "Agents"), ("execute", "Running a plan")),
    "accuracy.html": (("accuracy", "Accuracy"), ("replay", "Replay")),
    "usage.html": (("service", "The service"),),
    "keys.html": (("how-to/administer", "Administer tenants and keys"),),
    "audit.html": (("how-to/administer", "Administer tenants and keys"),),
    "tenants.html": (("how-to/administer", "Administer tenants and keys"),),
    "tenant.html": (("how-to/administer", "Administer tenants and keys"),),
    "sign_in.html": (("how-to/sign-in", "Let people sign in"),),
}  # fmt: skip
"""By template: pages of the documentation and their titles, the most fitting first."""


def topics_of(template: str, docs: DocsTree) -> list[tuple[str, str]]:
    """Returns the addresses and titles of a view's pages, of those that this service serves."""
    return [
        (f"{ROOT}{name}.html", title)
        for name, title in TOPICS.get(template, ())
        if f"{name}.html" in docs
    ]


def serve_docs(request: Request, name: str) -> Response:
    """Returns a file of the documentation. Raises a `not-found` problem if there is none."""
    file = state_of(request).docs.file(name)
    if file is None:
        raise not_found("page of the documentation", name[:80])
    scripts = "".join(f" {one}" for one in file.scripts)
    return file_response(
        request,
        file.content,
        file.media_type,
        file.digest,
        # Sphinx names the files that its pages load by a checksum.
        named=name.startswith("_static/") and request.url.query.startswith("v="),
        gzipped=file.gzipped,
        headers={
            "Content-Security-Policy": POLICY.format(scripts=scripts),
            "X-Frame-Options": "DENY",
            "Referrer-Policy": "same-origin",
            "Cross-Origin-Opener-Policy": "same-origin",
        },
    )
