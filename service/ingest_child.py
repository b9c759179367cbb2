"""The process that reads one ONNX file from standard input and writes the graph's JSON.

Exit status 0: the graph; 2: one JSON object with problem, field and expected.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import tempfile
import warnings
from pathlib import Path

from shardwise.capture.onnx.capture import capture_onnx
from shardwise.capture.onnx.sizes import Sizes
from shardwise.errors import BadInput
from shardwise.files import LIMIT_VARIABLE
from shardwise.graph import canonical_json


def main() -> int:
    """Read, translate, write."""
    request = json.loads(sys.argv[1])
    limit = request["memory_bytes"]
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.environ[LIMIT_VARIABLE] = str(request["max_file_bytes"])
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory(prefix="shardwise-onnx-") as folder:
        path = Path(folder) / "upload.onnx"
        path.write_bytes(sys.stdin.buffer.read())
        try:
            sizes = dict(request["sizes"])
            batch, seq = sizes.pop("batch", None), sizes.pop("seq", None)
            graph = capture_onnx(str(path), Sizes(batch, seq, sizes), request["name"])
        except BadInput as error:
            field = error.field or "the file"
            expected = error.expected
            if expected and expected.startswith(("--batch", "--seq")):
                # Sizes speaks to the command line; here they are query parameters.
                flag = "batch" if expected.startswith("--batch") else "seq"
                expected = f"the query parameter {flag}, or one with the dimension's name"
            document = {"problem": error.problem, "field": field, "expected": expected}
            sys.stdout.write(json.dumps(document))
            return 2
    sys.stdout.buffer.write(canonical_json(graph))
    return 0


if __name__ == "__main__":
    sys.exit(main())
