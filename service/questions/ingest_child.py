"""The process that reads one upload: JSON or ONNX becomes a graph, YAML a mapping.

The command line's one argument is a JSON object; the upload is the file `upload` of its `folder`,
the answer its file `answer`. Exit status 0: a line of JSON with the graph's summary, then its
canonical JSON, or a mapping as MessagePack; 2: one JSON object with the problem's `slug`, `detail`
and further members.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import warnings
from pathlib import Path
from typing import Any

from service.base.background import READING, give_way
from service.base.problems import problem_of
from shardwise.child_process import die_with_parent, limit_process
from shardwise.errors import BadInput, ShardwiseError


def main() -> int:
    """Reads an upload, checks it and writes what it is."""
    request = json.loads(sys.argv[1])
    die_with_parent(request["parent"])
    give_way(READING)
    bound(request)
    warnings.simplefilter("ignore")
    folder = Path(request["folder"])
    try:
        answer, status = read(folder / "upload", request), 0
    except ShardwiseError as error:
        problem = problem_of(error)
        members = {"slug": problem.slug, "detail": problem.detail, **problem.extra}
        answer, status = json.dumps(members).encode(), 2
    (folder / "answer").write_bytes(answer)
    return status


def bound(request: dict[str, Any]) -> None:
    """Limits this process, and its output to what the service would accept as JSON."""
    limit_process(
        memory_bytes=request["memory_bytes"],
        processor_s=int(request["time_s"]) + 1,
        file_bytes=request["max_file_bytes"] + 2**16,
    )
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)


def read(path: Path, request: dict[str, Any]) -> bytes:
    """Returns the answer for one upload. Raises `ShardwiseError` with the reason."""
    if request["kind"] == "call":
        return _checked_call(path.read_bytes(), request)
    if request["kind"] == "yaml":
        import msgspec

        from service.base.yaml_text import read_mapping

        text = path.read_bytes().decode("utf-8", "surrogatepass")
        return msgspec.msgpack.encode(read_mapping(text, request["field"]))
    from service.questions.upload import Upload, read_json_upload, require_operators, upload_of

    if request["kind"] == "json":
        upload: Upload = read_json_upload(
            path.read_bytes(), request["max_depth"], request["max_operators"], request["sizes"]
        )
    else:
        graph = _captured(path, request)
        require_operators(len(graph.operators), request["max_operators"])
        upload = upload_of(graph)
    return json.dumps(upload.summary).encode() + b"\n" + upload.canonical


def _checked_call(body: bytes, request: dict[str, Any]) -> bytes:
    """Returns nothing for a call of a tool whose long text may be long.

    Raises `Problem` for any other body: it has too many bytes besides.
    """
    from service.base.json_body import read_json
    from service.base.problems import Problem

    value = read_json(body, request["max_depth"])
    called = value.get("params") if isinstance(value, dict) else None
    named = called.get("name") if isinstance(called, dict) else None
    arguments = called.get("arguments") if isinstance(called, dict) else None
    text = None
    if isinstance(named, str) and isinstance(arguments, dict):
        text = arguments.get(request["texts"].get(named, ""))
    # The shortest JSON of the text, so that nothing else hides behind it.
    spared = len(json.dumps(text, ensure_ascii=False).encode()) if isinstance(text, str) else 0
    if len(body) - spared > request["most"]:
        detail = f"at most {request['most']} bytes are read besides the long text of a tool"
        raise Problem("too-large", detail, limit_bytes=request["most"])
    return b""


def _captured(path: Path, request: dict[str, Any]) -> Any:
    from shardwise.capture.onnx.capture import capture_onnx
    from shardwise.capture.onnx.sizes import Sizes
    from shardwise.files import LIMIT_VARIABLE

    os.environ[LIMIT_VARIABLE] = str(request["max_file_bytes"])
    sizes = dict(request["sizes"])
    batch, seq = sizes.pop("batch", None), sizes.pop("seq", None)
    try:
        return capture_onnx(str(path), Sizes(batch, seq, sizes), request["name"])
    except BadInput as error:
        expected = error.expected
        if expected and expected.startswith(("--batch", "--seq")):
            # Sizes names options of the command line; here they are query parameters.
            flag = "batch" if expected.startswith("--batch") else "seq"
            expected = f"the query parameter {flag}, or one with the dimension's name"
        field = error.field or "the file"
        raise BadInput(error.problem, field=field, expected=expected) from None


if __name__ == "__main__":
    sys.exit(main())
