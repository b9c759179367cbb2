"""Every command in README.md and docs/ runs, in its page's order, and exits as it should.

A page needs nothing here: it is found, and its fenced sh, bash, console and python blocks are run
with what `PREPARED` says that it takes for granted. Marks above blocks (fences.py) say what is
not run and why, and what another test runs; `ELSEWHERE` names pages that another test runs whole.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from harness.cases import every
from harness.commands import succeed
from harness.docs.fence_checks import check, inline_commands, shardwise_calls, unknown_option
from harness.docs.fences import ROOT, Block, blocks, command_blocks, pages, unfenced_commands
from harness.docs.page_runner import Page, copy
from harness.service.service_harness import Service, free_port, new_database
from harness.tiers import some

ELSEWHERE = {
    "docs/schedulers.md": "tests/integration/schedulers/test_schedulers_docs.py",
    "docs/tdl.md": "tests/unit/test_tdl_plugins.py",
}
"""Pages whose every command another test runs."""


@dataclass(frozen=True)
class Prepared:
    """What a page takes for granted: files, a running service, one with keys, real servers."""

    files: tuple[str, ...] = ()
    service: bool = False
    keys: bool = False
    servers: bool = False
    replace: dict[str, str] = field(default_factory=dict)


PREPARED = {
    "README.md": Prepared(files=("mypackage",)),
    "docs/client.md": Prepared(files=("graph.json",), service=True, keys=True),
    "docs/deploy.md": Prepared(service=True, keys=True),
    "docs/how-to/operator.md": Prepared(servers=True),
    "docs/how-to/webhooks.md": Prepared(
        replace={"127.0.0.1:9000": f"127.0.0.1:{free_port()}"},
    ),
    "docs/operator-tables.md": Prepared(files=("graph.json",)),
    "docs/service.md": Prepared(files=("graph.json", "model.onnx")),
    "docs/strategies.md": Prepared(files=("g.json",)),
}


def run_pages() -> list[str]:
    return [page for page in pages() if command_blocks(page) and page not in ELSEWHERE]


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files that pages take for granted: a small Llama, a user's module."""
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("shared")
    (folder / "mypackage").mkdir()
    (folder / "mypackage" / "mymodel.py").write_text(
        "import torch\n\n\ndef make(batch=8):\n"
        "    return torch.nn.Linear(64, 8), (torch.randn(batch, 64),)\n"
    )
    small = (
        "hf:LlamaConfig:num_hidden_layers=1,hidden_size=64,intermediate_size=128,"
        "num_attention_heads=4,num_key_value_heads=4,vocab_size=256"
    )
    succeed("capture", small, "--batch", "16", "--seq", "32", "-o", "graph.json", cwd=folder)
    (folder / "g.json").write_bytes((folder / "graph.json").read_bytes())
    return folder


@pytest.fixture(scope="session")
def onnx_file(shared: Path) -> Callable[[], None]:
    """Writes model.onnx, when a page needs it."""

    def write() -> None:
        torch = pytest.importorskip("torch")
        pytest.importorskip("onnxscript")
        module = torch.nn.Sequential(torch.nn.Linear(16, 8), torch.nn.ReLU())
        export = torch.onnx.export(module, (torch.randn(8, 16),), dynamo=True)
        export.save(str(shared / "model.onnx"))

    return write


ALWAYS = ("docs/strategies.md",)
"""Pages whose commands `make test` runs."""


@pytest.mark.needs("curl")
@pytest.mark.torch
@pytest.mark.parametrize("name", some(run_pages(), lambda page: page in ALWAYS))
def test_commands_of(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    prepared = PREPARED.get(name, Prepared())
    if "model.onnx" in prepared.files:
        request.getfixturevalue("onnx_file")()
    with ExitStack() as stack:
        replace, variables, port = dict(prepared.replace), {"U": ""}, free_port()
        if prepared.servers:
            admin = request.getfixturevalue("postgres_url")
            redis = request.getfixturevalue("redis_url")
            database = stack.enter_context(new_database(admin))
            replace["postgresql://user@db/shardwise"] = database
            replace["redis://broker:6379/0"] = redis
        if prepared.service:
            (tmp_path / "service").mkdir()
            if prepared.keys:
                variables["KEY"] = replace["sw_…"] = key_of(tmp_path / "service")
            service = Service(tmp_path / "service")
            stack.callback(service.stop)
            port = int(service.url.rpartition(":")[2])
        variables["U"] = f"http://127.0.0.1:{port}"
        page = Page(tmp_path, port, replace, variables)
        stack.callback(page.stop)
        if prepared.files:
            copy(request.getfixturevalue("shared"), page, *prepared.files)
        for block in command_blocks(name):
            page.run(block)
        page.finish()


def key_of(folder: Path) -> str:
    """A new key of the service whose folder this is."""
    command = ("keys", "create", "--tenant", "docs", "--data-dir", str(folder / "data"), "--json")
    return str(json.loads(succeed(*command, cwd=folder))["key"])


@pytest.mark.parametrize("page", sorted(ELSEWHERE))
def test_pages_that_another_test_runs(page: str) -> None:
    assert Path(page).name in (ROOT / ELSEWHERE[page]).read_text("utf-8")
    for block in command_blocks(page):
        check(block)


def test_no_command_escapes() -> None:
    """No test would run a command outside the fences of a known language."""

    def fenced(page: str) -> None:
        assert unfenced_commands(page) == []
        for block in blocks(page):
            assert block.language, f"{block.where}: a fence needs a language (`text` for output)"

    every(pages(), fenced)


def test_commands_in_running_text_exist() -> None:
    def known(page: str) -> None:
        text = (ROOT / page).read_text("utf-8")
        for command in inline_commands(text):
            plain = command.replace("…", "").replace("[", " ").replace("]", " ").replace("|", " ")
            for words in shardwise_calls(plain.replace("(", "").replace(")", "")):
                unknown = unknown_option(words)
                assert unknown is None, f"`{command}`: {unknown}"

    every(pages(), known)


def sample(text: str) -> list[Block]:
    return list(blocks("docs/sample.md", text))


def test_fences_and_marks_are_read() -> None:
    text = (
        "# A\n\n<!-- exit code: 2 -->\n\n```console\n$ a \\\n>   b\nsaid\n$ 'c\n> d'\n```\n\n"
        "- item\n\n  ```python\n  x = 1\n  ```\n\n<!-- not run: a cluster -->\n```sh\nd\n```\n"
    )
    first, second, third = sample(text)
    assert (first.line, first.mark, first.commands) == (
        5,
        ("exit code", "2"),
        "a \\\n  b\n'c\nd'\n",
    )
    assert (second.language, second.text, second.mark) == ("python", "x = 1\n", None)
    assert (third.mark, third.commands) == (("not run", "a cluster"), "d\n")
    with pytest.raises(AssertionError, match="no block"):
        sample("<!-- exit code: 2 -->\ntext\n")
    with pytest.raises(AssertionError, match="never closed"):
        sample("```sh\nls\n")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("shardwise plan g.json --hardwear dgx-h100", "no option --hardwear"),
        ("true && shardwise lanch x", "no command lanch"),
        ("SHARDWISE_X=1 shardwise agents liste | cat", "no command liste"),
        ("if true; then", "syntax error"),
        ("python benchmarks/bench_nothing.py", "no benchmarks/bench_nothing.py"),
        ("make nothing", "no target nothing"),
    ],
)
def test_what_cannot_be_is_found(text: str, problem: str) -> None:
    (block,) = sample(f"```sh\n{text}\n```\n")
    with pytest.raises(AssertionError, match=problem):
        check(block)


def test_what_can_be_passes(tmp_path: Path) -> None:
    (block,) = sample("```sh\nshardwise run p.json --steps 3 -- --nnodes 2 > out | tee x\n```\n")
    check(block)
    (wrong,) = sample("```python\nfrom shardwise.answers import no_such_name\n```\n")
    with pytest.raises(ImportError):
        check(wrong)
    (failing,) = sample("```console\n$ shardwise inspect missing.json\n```\n")
    page = Page(tmp_path, free_port(), {}, {})
    with pytest.raises(AssertionError, match="ended with 2"):
        page.run(failing)
