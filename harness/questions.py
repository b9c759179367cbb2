"""Questions as the library's functions take them: random ones, and one form of equal ones.

A transport carries a question if the function that it calls at its end hears the same arguments.
Equal questions may be spelled differently: numbers in another order or twice, a bundle's groups in
another order, schedules of a question without stages. `normal` has one form of all of those.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any

from hypothesis import strategies as st

from harness.graph_builder import GraphBuilder
from shardwise.answers import OBJECTIVES, Options
from shardwise.answers.order import ORDERS
from shardwise.cost.named_options import CHOICES
from shardwise.cost.options import METHODS, TOFU, ZERO_STAGES
from shardwise.cost.pins import parse_pin
from shardwise.cost.step_settings import (
    ACCUMULATIONS,
    DEVICES,
    GRADIENTS,
    NONE,
    OFFLOADED_STATES,
    STATES,
    UPDATES,
    WEIGHTS,
    StepSettings,
)
from shardwise.graph import Graph, graph_id
from shardwise.hardware import (
    Hardware,
    Offer,
    devices_of,
    load_hardware,
    parse_bundles,
)
from shardwise.hardware.offers import UNDATED
from shardwise.hardware.power import power_range
from shardwise.pipeline.asked import ANY, DEFAULT_SCHEDULES, NO_STAGES, PIPED_TRAINERS
from shardwise.search.pipelines.searched import ordered
from shardwise.trainers.spaces import SPACES


def _graph() -> Graph:
    """Returns two products with a ReLU between them, whose scope has blanks."""
    builder = GraphBuilder("asked <&> answered")
    hidden = builder.linear(
        "one", builder.input("x", 64, 32), builder.parameter("w1", 128, 32), "h"
    )
    passed = builder.relu("act", hidden, "a", "scope with blanks.0")
    builder.linear("two", passed, builder.parameter("w2", 32, 128), "y")
    return builder.graph()


GRAPH = _graph()
DIVISORS = (1, 2, 4, 8, 16, 32, 64)
"""Of the batch."""
PLAIN, GROUPED = ("l4", "dgx-v100-16gb", "dgx-v100-16gb*2", "own"), ("heterog-8", "l40s-4+a100-4")
OWN = replace(load_hardware("l4"), name="mine & yours")
POINT = f"sha256:{'0123456789abcdef' * 4}"
WHOLE_SCHEDULES = ("1f1b", "1f1b-eager", "gpipe")
SCHEDULES = (*WHOLE_SCHEDULES, "zb-h1", "interleaved:2", "zb-h1:3", "zbv", "dualpipev")
RULES = (
    "split=batch", "split=none,out", "zero=0,3", "o[mn]e*:zero!=2", "tw?:recompute=no",
    "inside!=out", "between=none,batch", "act:precision=captured", "*:precision=fp8:rowwise",
    "partial!=reduce_scatter",
    "scope with blanks.*:reuse=before,both",
)  # fmt: skip
CONFIGURATIONS = (
    '{"train_batch_size": 64, "zero_optimization": {"stage": 1}}',
    "# größer\n--tensor-model-parallel-size 2\n",
)


@dataclass(frozen=True)
class Asked:
    """A question: the name of its answer, and the arguments besides the graph, by name.

    Of the hardware there is the name, for texts of failures; `given` has the profile itself.
    """

    kind: str
    arguments: Mapping[str, Any]

    @property
    def given(self) -> dict[str, Any]:
        """The arguments as the library's function takes them."""
        name = self.arguments.get("hardware")
        profile = {} if name is None else {"hardware": hardware_of(name)}
        return {**self.arguments, **profile}

    def with_(self, **others: Any) -> Asked:
        """Returns the question with other arguments."""
        return Asked(self.kind, {**self.arguments, **others})


@cache
def hardware_of(name: str) -> Hardware:
    """Returns a profile of `PLAIN` or `GROUPED`."""
    return OWN if name == "own" else load_hardware(name)


def normal(kind: str, heard: Mapping[str, Any]) -> dict[str, Any]:
    """Returns arguments, with those that are left out, in the one form of equal questions."""
    form = {name: value for name, value in heard.items() if name not in ("progress", "today")}
    form["options"] = _options(form["options"] or Options())
    hardware = form.get("hardware")
    if hardware is not None:
        form["hardware"] = hardware.id
    if "graph" in form:
        form["graph"] = graph_id(form["graph"])
    if "gpus" in form:
        form["gpus"] = str(devices_of(form["gpus"], hardware))
    if kind == "curve":
        most, counts = form.pop("max_gpus", None), form.pop("counts", None) or ()
        form["counts"] = list(counts) or list(range(1, (most or 0) + 1))
    if form.get("bundles"):
        form["bundles"] = [str(one) for one in parse_bundles(form["bundles"], hardware)]
    else:
        form.pop("bundles", None)
    if "stages" in form:
        form["stages"], form["schedules"] = _staged(
            form["stages"], form["schedules"], beside=kind != "plan"
        )
    if "prices" in form:
        form["prices"] = dict(form["prices"] or {})
    if kind == "plan" and form.get("point") is not None:
        form.pop("objective")
    return form


def _options(options: Options) -> Options:
    zero, micro_batches = (tuple(sorted(set(of))) for of in (options.zero, options.micro_batches))
    return replace(options, threads=0, zero=zero, micro_batches=micro_batches)


def _staged(stages: Any, schedules: Any, *, beside: bool) -> tuple[Any, Any]:
    """Returns numbers of stages and schedules; of a question that asks for no pipeline none."""
    schedules = DEFAULT_SCHEDULES if schedules is None else schedules
    if stages is None:
        return None, ordered(schedules)
    counts = set(stages)
    if counts == set(NO_STAGES):
        return list(NO_STAGES), None
    return sorted(counts - set(NO_STAGES) if beside else counts), ordered(schedules)


FINITE: dict[str, Any] = {"allow_nan": False, "allow_infinity": False}
STEPS = st.builds(
    StepSettings,
    device=st.sampled_from(DEVICES),
    update=st.none() | st.sampled_from(UPDATES),
    block_bytes=st.integers(1, 2**20),
    state=st.sampled_from((*STATES, "16:16:8")),
    gradients=st.sampled_from(GRADIENTS),
    accumulation=st.sampled_from(ACCUMULATIONS),
    weights=st.sampled_from(WEIGHTS),
)
USUAL_OPTIONS = Options()
FIELDS: dict[str, Any] = {
    **{
        name: st.sampled_from(words if getattr(USUAL_OPTIONS, name) is not None else (None, *words))
        for name, words in CHOICES.items()
    },
    "epsilon": st.floats(0, 10),
    "memory_limit_bytes": st.none() | st.floats(1, 1e15, **FINITE) | st.integers(1, 2**50),
    "memory_headroom": st.floats(0.01, 100),
    "memory_room_bytes": st.just(0.0) | st.floats(1, 1e15, **FINITE),
    "time_limit_s": st.none() | st.floats(1e-6, 1e6, **FINITE),
    "search_memory_bytes": st.none() | st.integers(2**24, 2**45),
    "method": st.sampled_from([method for method in METHODS if method != TOFU]),
    "max_configurations": st.integers(1, 10**6),
    "zero": st.lists(st.sampled_from(ZERO_STAGES), min_size=1, max_size=5).map(tuple),
    "micro_batches": st.lists(st.sampled_from(DIVISORS), max_size=4).map(tuple),
    "pins": st.lists(st.sampled_from(RULES).map(parse_pin), max_size=3).map(tuple),
    "overlap": st.booleans(),
    "step": STEPS,
    "power_limit_w": st.none() | st.floats(0.6, 1.0),
    "expert_imbalance": st.floats(1.0, 8.0),
    "tune": st.sampled_from(("full", "lora:4", "qlora:2:all-linear")),
}
"""Values of every option that a question may have; a test fails if one is missing here."""
ALONE = ("assumed", "gradients_applied_at_once", "policy", "shard_units", "threads")
"""Options that are drawn with others that they allow, or that no question has."""


@st.composite
def options(draw: Any, /, **fixed: Any) -> Options:
    """Draws options of which some are not the defaults; `fixed` are as given."""
    some = draw(st.sets(st.sampled_from(sorted(FIELDS))))
    chosen = {name: draw(FIELDS[name]) for name in sorted(some - fixed.keys())}
    if "micro_batches" not in fixed and draw(st.integers(0, 7)) == 0:
        chosen |= {
            "gradients_applied_at_once": True,
            "micro_batches": draw(st.sampled_from([(), (1,)])),
        }
    made = Options(**chosen, **fixed)
    if draw(st.integers(0, 7)) == 0 and set(made.zero) != {0}:
        made = replace(made, step=replace(made.step, offload=OFFLOADED_STATES))
    return made


@st.composite
def staged(draw: Any, most: int, schedules: tuple[str, ...] = SCHEDULES) -> dict[str, Any]:
    """Draws numbers of stages up to `most` and schedules, or none of both."""
    if draw(st.booleans()):
        return {"stages": NO_STAGES, "schedules": DEFAULT_SCHEDULES}
    counts = draw(st.none() | st.lists(st.integers(1, most), min_size=1, max_size=4))
    some = draw(st.lists(st.sampled_from(schedules), min_size=1, max_size=3))
    return {"stages": counts, "schedules": some}


def searched(draw: Any, staged: Mapping[str, Any], **fixed: Any) -> Options:
    """Draws the options of a question, which pipelines have if some are asked for."""
    piped = staged["stages"] is None or set(staged["stages"]) != set(NO_STAGES)
    found: Options = draw(options(**({"overlap": True} if piped else {}), **fixed))
    if not piped:
        return found
    step = replace(found.step, offload=NONE)
    return replace(found, gradients_applied_at_once=False, step=step)


@st.composite
def devices(draw: Any, grouped: bool | None = None) -> tuple[str, int | str]:
    """Draws a profile's name and some of its devices: a number, or a text with groups."""
    if draw(st.booleans()) if grouped is None else grouped:
        name = draw(st.sampled_from(GROUPED))
        return name, draw(bundle(name))
    return draw(st.sampled_from(PLAIN)), draw(st.integers(1, 8))


def bundle(hardware: str) -> st.SearchStrategy[str]:
    """Returns texts that say devices by group, groups in any order."""
    names = [group.name for group in hardware_of(hardware).groups]
    parts = st.tuples(st.sampled_from(names), st.integers(1, 2))
    some = st.lists(parts, min_size=1, unique_by=lambda part: part[0])
    return some.map(lambda parts: ",".join(f"{name}={number}" for name, number in parts))


@st.composite
def frontiers(draw: Any) -> Asked:
    """Draws a frontier's question."""
    hardware, gpus = draw(devices())
    more = draw(staged(4, WHOLE_SCHEDULES if hardware in GROUPED else SCHEDULES))
    made = searched(draw, more)
    return Asked("frontier", {"hardware": hardware, "gpus": gpus, "options": made, **more})


@st.composite
def curves(draw: Any) -> Asked:
    """Draws a curve's question: up to a number, of some counts, or over bundles."""
    hardware, _ = draw(devices())
    where: dict[str, Any] = {"max_gpus": draw(st.integers(2, 8)), "bundles": ()}
    if draw(st.booleans()):
        counts = draw(st.sets(st.integers(1, 64), min_size=1, max_size=4))
        where = {"counts": sorted(counts), "bundles": ()}
    if hardware in GROUPED:
        some = st.lists(bundle(hardware) | st.just("usual"), min_size=1, max_size=3)
        where = {"max_gpus": None, "bundles": tuple(draw(some))}
    most = 1 if hardware in GROUPED else max(where.get("counts", [where.get("max_gpus")]))
    more = draw(staged(most, WHOLE_SCHEDULES if hardware in GROUPED else SCHEDULES))
    made = searched(draw, more)
    return Asked("curve", {"hardware": hardware, "options": made, **where, **more})


@st.composite
def plans(draw: Any) -> Asked:
    """Draws a plan's question: by an objective, of a point, for a trainer or as a pipeline."""
    which = draw(st.sampled_from(("objective", "point", "space", "stages", "space and stages")))
    trained, piped = "space" in which, "stages" in which
    hardware, gpus = draw(devices(False if trained else None))
    asked: dict[str, Any] = {
        "hardware": hardware, "gpus": gpus, "objective": OBJECTIVES[0], "point": None,
        "order": None, "space": ANY, "stages": NO_STAGES, "schedules": None,
    }  # fmt: skip
    if not (trained and piped):
        asked["objective"] = draw(st.sampled_from(OBJECTIVES))
    if trained:
        asked["space"] = draw(st.sampled_from(PIPED_TRAINERS if piped else sorted(SPACES)))
    if which == "point" or (which == "stages" and draw(st.booleans())):
        asked |= {"objective": OBJECTIVES[0], "point": POINT}
    if piped:
        counts = draw(st.none() | st.lists(st.integers(1, 4), min_size=1, max_size=4))
        if counts is not None and set(counts) == set(NO_STAGES):
            counts.append(2)
        schedules = WHOLE_SCHEDULES if hardware in GROUPED else SCHEDULES
        some = st.lists(st.sampled_from(schedules), min_size=1, max_size=3)
        asked |= {"stages": counts, "schedules": draw(st.none() | some)}
    elif not trained:
        asked["order"] = draw(st.none() | st.sampled_from(ORDERS))
    if trained:
        made = draw(options(overlap=True, pins=()))
    else:
        made = searched(draw, asked) if piped else draw(options())
    return Asked("plan", {**asked, "options": made})


@st.composite
def pricings(draw: Any) -> Asked:
    """Draws a question about a trainer's configuration."""
    hardware, gpus = draw(devices(False))
    given = {"configuration": draw(st.sampled_from(CONFIGURATIONS))}
    given["file"] = draw(st.sampled_from(("mine.json", "größe & d.yaml")))
    made = draw(options(overlap=True, pins=()))
    return Asked("pricing", {"hardware": hardware, "gpus": gpus, "options": made, **given})


TEXTS = st.text(
    st.characters(max_codepoint=0x2FFF, exclude_categories=("C", "Z")), min_size=1, max_size=12
)
PRICES = st.floats(0.01, 1e6, **FINITE)
OFFERS = st.builds(
    Offer,
    provider=TEXTS,
    instance_type=TEXTS | st.just('it\'s, "large"'),
    gpus_per_instance=st.integers(1, 8),
    gpu_kind=st.sampled_from(("V100", "L4", "H100")),
    region=TEXTS,
    spot=st.booleans(),
    usd_per_hour=PRICES,
    price_as_of=st.sampled_from(("2026-01-31", UNDATED)),
    price_source=TEXTS,
    hardware=st.sampled_from(("l4", "dgx-v100-16gb")),
    network_gbps=st.none() | PRICES,
)


@st.composite
def quotes(draw: Any) -> Asked:
    """Draws a quote's question: of offers, of several kinds together, or of a profile's parts."""
    steps = draw(st.none() | st.integers(1, 10**9))
    money: dict[str, Any] = {"steps": steps, "deadline_s": None, "budget_usd": None}
    if steps is not None:
        money["deadline_s"] = draw(st.none() | st.floats(1e-3, 1e9))
        money["budget_usd"] = draw(st.none() | st.floats(1e-3, 1e9))
    offers = draw(st.lists(OFFERS, min_size=1, max_size=3))
    several: dict[str, Any] = {"combine": draw(st.integers(1, 3)), "hardware": None, "prices": {}}
    if draw(st.integers(0, 2)) == 0:
        hardware = draw(st.sampled_from(GROUPED))
        prices = {group.name: draw(PRICES) for group in hardware_of(hardware).groups}
        several = {"combine": 1, "hardware": hardware, "prices": prices}
    kinds = several["hardware"] is not None or several["combine"] > 1
    more = draw(staged(4, WHOLE_SCHEDULES if kinds else SCHEDULES))
    most = draw(st.integers(1, 64))
    made = searched(draw, more)
    return Asked(
        "quote",
        {"offers": offers, "options": made, "max_instances": most, **money, **several, **more},
    )


@st.composite
def comparisons(draw: Any) -> Asked:
    """Draws a comparison's question."""
    hardware, gpus = draw(devices())
    more = (
        draw(staged(4))
        if hardware in PLAIN
        else {"stages": NO_STAGES, "schedules": DEFAULT_SCHEDULES}
    )
    fixed: dict[str, Any] = {"pins": ()}
    if hardware in GROUPED:
        fixed["overlap"] = True
    made = searched(draw, more, **fixed)
    if not made.overlap:
        made = replace(made, micro_batches=())
    random = {
        "proposals": draw(st.none() | st.integers(1, 10**7)),
        "seed": draw(st.integers(0, 2**32 - 1)),
    }
    return Asked("compare", {"hardware": hardware, "gpus": gpus, "options": made, **random, **more})


def powered(asked: Asked) -> Asked:
    """Returns a question whose power limit, drawn as a share, is in watts that its GPUs have."""
    share = asked.arguments["options"].power_limit_w
    if share is None:
        return asked
    hardware = asked.arguments.get("hardware")
    power = power_range(hardware_of(hardware).devices[0]) if hardware in PLAIN else None
    watts = round(share * (power.full_w if power else 250.0), 3)
    return asked.with_(options=replace(asked.arguments["options"], power_limit_w=watts))


def answerable(asked: Asked) -> Asked:
    """Returns a question without what devices of several kinds, or a trainer's stages, do not
    have."""
    options: Options = asked.arguments["options"]
    several = asked.arguments.get("hardware") in GROUPED or asked.arguments.get("combine", 1) > 1
    trained = asked.arguments.get("space", ANY) != ANY
    piped = set(asked.arguments.get("stages") or (0,)) != set(NO_STAGES)
    if not (several or (trained and piped)):
        return asked
    step = replace(options.step, offload=NONE)
    return asked.with_(
        options=replace(options, step=step, overlap=True, gradients_applied_at_once=False)
    )


EVERY = {
    kind: drawn.map(powered).map(answerable)
    for kind, drawn in (
        ("frontier", frontiers()),
        ("curve", curves()),
        ("plan", plans()),
        ("pricing", pricings()),
        ("quote", quotes()),
        ("compare", comparisons()),
    )
}
"""Random questions by the kind of the answer."""


def unknown_fields() -> set[str]:
    """Returns the fields of `Options` that no strategy here draws."""
    return {item.name for item in fields(Options)} - FIELDS.keys() - set(ALONE)
