"""The GPU visits with servers that are made up: every part runs, and a fault costs only itself."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import mla_plan  # type: ignore[import-not-found]
import pytest
import serve_parts  # type: ignore[import-not-found]
import serve_plans  # type: ignore[import-not-found]
import serve_proofs  # type: ignore[import-not-found]
import serve_visit  # type: ignore[import-not-found]
import step_profile  # type: ignore[import-not-found]
import two_samples  # type: ignore[import-not-found]
from serve_fleet import Spec  # type: ignore[import-not-found]


class MadeUp:
    """Answers 1, 2, 3, ... after a prompt's length; two tokens a pass where it speculates."""

    def __init__(self, spec: Spec, folder: Path) -> None:
        self.spec, self.probe, self.ready_after = spec, folder / spec.name, 1.0
        self.probe.mkdir(parents=True)
        self.passes = 0
        self.fails_at: str | None = None

    def generate(self, ids: Sequence[int], sampling: dict[str, Any], **extra: Any) -> Any:
        if self.fails_at == "generate":
            raise RuntimeError("made-up failure")
        count = sampling["max_new_tokens"]
        said = [(len(ids) + i) % 50 for i in range(count)]
        if self.fails_at == "tokens":
            said[count // 2] += 1
        meta: dict[str, Any] = {"output_top_logprobs": [[[-0.1, 1], [-3.0, 2]]] * count,
                                "output_token_logprobs": [[-0.1, 1]] * count,
                                "input_token_logprobs": [[-0.5, 1]] * len(ids)}  # fmt: skip
        if self.spec.algorithm:
            meta["spec_verify_ct"] = max(1, count // 2)
            self.passes += count // 2
        answer = {"output_ids": said, "meta_info": meta, "text": "text"}
        return [answer] * sampling["n"] if "n" in sampling else answer

    def ask(
        self, prompts: Sequence[Sequence[int]], sampling: dict[str, Any], at_once: int, **extra: Any
    ) -> list[Any]:
        del at_once
        return [self.generate(p, sampling, **extra) for p in prompts]

    def switch(self, name: str, on: bool) -> None:
        if on and name == "steps":
            (self.probe / "steps.jsonl").write_text('{"commit": [2, 3], "spine": [2, 1]}\n')
        if on and name == "detect":
            sums = {"rows_to_change": 4, "rows_changed": 4, "rows_changed_that_must_not": 0}
            row = {"bs": 1, **sums, "leaves_changed": 1, "other_rows_stirred": 0, "restored": True}
            if self.spec.env.get("DDTREE_PROBE_BUG") == "4":
                row |= {"rows_changed": 0, "other_rows_stirred": 2}
            (self.probe / "detect.jsonl").write_text(json.dumps(row) + "\n")

    def report(self) -> tuple[dict[str, int], list[dict[str, Any]]]:
        return {"target TARGET_VERIFY 9 graph": self.passes}, [
            {"part": "step", "bs": bs, "n": 3, "median_ms": 1.0} for bs in (1, 4, 16, 32)
        ]

    def call(self, method: str, path: str) -> str:
        return f"{method} {path}"

    def dead(self) -> bool:
        return False

    def tail(self) -> str:
        return "last words"


class MadeUpFleet:
    def __init__(self, folder: Path, **_: Any) -> None:
        self.folder = folder
        self.servers: dict[str, MadeUp] = {}
        self.why: dict[str, str] = {}
        self.faults: dict[str, str] = {}

    def __getitem__(self, name: str) -> MadeUp:
        return self.servers[name]

    def start(self, *specs: Spec) -> None:
        for spec in specs:
            self.servers[spec.name] = MadeUp(spec, self.folder)
            self.servers[spec.name].fails_at = self.faults.get(spec.name)

    def wait(self, names: Sequence[str], until: float) -> dict[str, str]:
        return {n: w for n, w in self.why.items() if n in names}

    def be_patient(self, seconds: float) -> None:
        assert seconds > 0

    def end_all(self, names: Iterable[str]) -> None:
        for name in list(names):
            self.servers.pop(name)


@pytest.fixture
def visit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> serve_visit.Visit:
    monkeypatch.setattr(serve_visit, "Fleet", MadeUpFleet)
    monkeypatch.setattr(serve_parts, "gpu", lambda visit: None)
    monkeypatch.setattr(serve_plans, "kernels", lambda visit: None)
    monkeypatch.setattr(serve_plans, "models_of", lambda visit, folder: folder)
    monkeypatch.setattr(serve_plans, "unpacked", lambda folder: folder)
    made = serve_visit.Visit(tmp_path / "out", tmp_path / "scratch", 500, cpu="")
    monkeypatch.setattr(made, "pack_caches", lambda: None)
    return made


def results(visit: serve_visit.Visit) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((visit.out / "serve.json").read_text())
    return found


def test_the_first_visit_reaches_all_its_parts(
    visit: serve_visit.Visit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Checks:
        def wait(self, seconds: float) -> None:
            (visit.out / "kernels.json").write_text('{"us": [1], "sync": {}, "law": {"error": 1}}')

    monkeypatch.setattr(serve_plans, "kernels", lambda visit: Checks())
    monkeypatch.setattr(serve_plans, "_until", lambda done, seconds: None)
    monkeypatch.setattr(serve_plans, "widened", lambda visit, models: tmp_path)
    serve_plans.first(visit, tmp_path)
    found = results(visit)
    assert found["errors"] == {} and found["skipped"] == []
    greedy = found["greedy pair-ddtree8 at 32"]
    assert (greedy["equal"], greedy["answers"]) == (96, 96)
    assert greedy["passes"]["target TARGET_VERIFY 9 graph"] == 96 * 64
    assert found["detect pair-ddtree15"]["reads_the_tree"] is True
    assert found["spine pair-ddtree7"]["tree"] == 2.5
    for kind in ("pair", "wide"):
        rows = found[f"table {kind}"]
        assert {r["server"] for r in rows} == {
            f"{kind}-{n}" for n in ("ar", "dflash", "ddtree7", "ddtree8", "ddtree15")
        }
        assert {(r["at_once"], r["n"]) for r in rows} == {(c, 5) for c in (1, 4, 16, 32)}
        assert len(found[f"parts {kind}"]) == 5 * 4
    assert found["kernels"]["law"] is True  # its part failed, and it is said
    assert found["sampled T=1.0"]["pair-ddtree8"]["z"] == 0.0


def test_rounds_start_with_another_server_each_time(
    visit: serve_visit.Visit, tmp_path: Path
) -> None:
    serve_plans.first(visit, tmp_path)
    rows = [r for r in results(visit)["rows pair"] if r["at_once"] == 1]
    firsts = [next(r["server"] for r in rows if r["round"] == n) for n in range(5)]
    assert len(set(firsts)) == 5


def test_a_server_that_ends_while_it_starts_stops_the_visit(
    visit: serve_visit.Visit, tmp_path: Path
) -> None:
    visit.fleet.why = {"pair-ddtree8": "ended with 1\nTraceback"}
    with pytest.raises(serve_visit.Stop, match="pair-ddtree8"):
        serve_plans.first(visit, tmp_path)
    assert "Traceback" in results(visit)["errors"]["start pair-ddtree8"]


def test_a_fault_costs_its_own_part_alone(visit: serve_visit.Visit, tmp_path: Path) -> None:
    visit.fleet.faults = {"pair-dflash": "tokens"}
    serve_plans.first(visit, tmp_path)
    found = results(visit)
    assert found["greedy pair-dflash at 8"]["equal"] == 0
    assert found["greedy pair-dflash at 8"]["parted_elsewhere"] == 96
    assert found["greedy pair-ddtree8 at 8"]["equal"] == 96


def test_without_time_parts_are_named_as_skipped(visit: serve_visit.Visit, tmp_path: Path) -> None:
    visit.limit = 12
    serve_plans.first(visit, tmp_path)
    found = results(visit)
    assert "smoke" in found["skipped"] and "sampled T=1.0" in found["skipped"]


def test_the_second_visit_shows_each_bug(visit: serve_visit.Visit, tmp_path: Path) -> None:
    serve_plans.second(visit, tmp_path)
    found = results(visit)
    assert found["errors"] == {} and found["skipped"] == []
    assert found["bug4 detect"]["reads_the_tree"] is False
    assert found["bug2 greedy"]["equal"] == 48
    for name in ("page16", "page64", "no-overlap", "chunked", "budget1", "budget32", "budget47"):
        assert found[name]["cached"]["equal"] == 48, name
        assert found[name]["answer_as_prompt"]["answers"] == 48
    assert found["f32-ddtree8 greedy"]["equal"] == 48


def test_the_second_visit_compares_samples_of_two_servers(
    visit: serve_visit.Visit, tmp_path: Path
) -> None:
    visit.fleet.faults = {"tree15": "tokens"}
    serve_plans.second(visit, tmp_path)
    found = results(visit)
    for name, p in (("tree8", 1.0), ("tree15", 0.0)):
        both = {k for k in found if k.startswith(f"triples {name} T=1.0 prompt ")}
        assert len(both) == 2 and {int(k.split()[-1]) for k in both} == set(found["varied prompts"])
        for key in both:
            assert found[key] == {"samples": 2048, "outcomes": 1, "p": p}


def test_the_steps_are_taken_in_turns_and_a_profile_that_fails_costs_itself(
    visit: serve_visit.Visit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, int, bool]] = []

    def profiled(server: Any, prompts: Any, at_once: int, *, stacks: bool) -> dict[str, Any]:
        asked.append((server.spec.name, at_once, stacks))
        if server.spec.name == "pair-dflash":
            raise RuntimeError("no profile came")
        return {"waits_in_step": {}}

    monkeypatch.setattr(serve_plans.step_profile, "profiled", profiled)
    monkeypatch.setattr(serve_plans, "widened", lambda visit, models: models)
    serve_plans.steps(visit, tmp_path)
    found = results(visit)
    assert set(found["errors"]) == {k for k in found["errors"] if "profile pair-dflash" in k}
    assert len(found["errors"]) == 3 and len(asked) == 15
    assert {r["round"] for r in found["steps"]} == set(range(serve_plans.STEP_ROUNDS))
    assert found["profile wide-ddtree7 at 16"] == {"waits_in_step": {}}


class Training:
    """A made-up run of train_pair.py; ends at once with `code`, or never where that is None."""

    def __init__(self, out: Path, code: int | None) -> None:
        self.out, self.code, self.killed = out, code, False

    def wait(self, seconds: float) -> int:
        if self.code is None:
            raise subprocess.TimeoutExpired("train_pair.py", seconds)
        if self.code == 0:
            self.out.mkdir(parents=True, exist_ok=True)
            (self.out / "pair.tar").write_bytes(b"tar")
            (self.out / "prompts.json").write_text(json.dumps({"token_ids": [[9] * 64] * 96}))
            drafted = {"held_out, T=0.0": {"tokens_per_step": {"chain": 2.5}}}
            said = ("loss_train", "loss_held_out", "sha256", "bytes", "seconds")
            report = dict.fromkeys(said, 1) | {"commit": drafted}
            (self.out / "pair.json").write_text(json.dumps(report))
        return self.code

    def poll(self) -> int | None:
        return self.code

    def kill(self) -> None:
        self.killed = True


@pytest.fixture
def training(
    visit: serve_visit.Visit, monkeypatch: pytest.MonkeyPatch
) -> Callable[[int | None], list[Training]]:
    """Runs of train_pair.py are made up: each with shapes alone succeeds, the other ends so."""

    def runs(code: int | None) -> list[Training]:
        made: list[Training] = []

        def start(visit: Any, out: Path, log: str, *flags: str) -> Training:
            (visit.out / log).write_text("a step\nlast words of training\n")
            made.append(Training(out, 0 if "--untrained" in flags else code))
            return made[-1]

        monkeypatch.setattr(mla_plan, "start", start)
        monkeypatch.setattr(mla_plan, "agreement", lambda visit, models, prompts: {"tokens": 3})
        return made

    return runs


def test_the_mla_visit_trains_a_pair_and_brings_it_home(
    visit: serve_visit.Visit, tmp_path: Path, training: Callable[[int | None], list[Training]]
) -> None:
    runs = training(0)
    mla_plan.mla(visit, tmp_path / "gpu")
    found = results(visit)
    assert found["errors"] == {} and found["skipped"] == []
    assert len(runs) == 2
    assert (visit.out / "pair-mla.tar").read_bytes() == b"tar"
    assert (visit.out / "prompts-mla.json").exists() and (visit.out / "pair-mla.json").exists()
    assert found["trained"]["tokens_per_step"] == {"chain": 2.5}
    warm = {"start warm-ar", "start warm-ddtree8", "start warm-f32-ddtree8"}
    assert warm <= set(found["seconds"])
    pair = {"pair-ar", "pair-dflash", "pair-ddtree7", "pair-ddtree8", "pair-ddtree15"}
    exact = {"f32-ar", "f32-dflash", "f32-ddtree8", "f32-ddtree15"}
    assert set(visit.fleet.servers) == pair | exact
    for name in exact:
        assert found[f"{name} greedy"]["equal"] == 48
        assert visit.fleet[name].spec.env["TRITON_F32_DEFAULT"] == "ieee"
    for name in pair:
        assert found[f"greedy {name} at 1"]["equal"] == 24
        assert found[f"greedy {name} at 8"]["equal"] == 96
        assert visit.fleet[name].spec.env == mla_plan.ENV
    assert found["detect pair-ddtree15"]["reads_the_tree"] is True
    assert found["agreement"] == {"tokens": 3}
    assert found["cached pair-ddtree8"]["answer_as_prompt"]["equal"] == 48
    assert found["cached f32-ddtree8"]["cached"]["equal"] == 48
    assert found["spine pair-ddtree15"]["steps_below_spine"] == 0


def test_the_mla_visit_uses_a_pair_that_came_along(
    visit: serve_visit.Visit, tmp_path: Path, training: Callable[[int | None], list[Training]]
) -> None:
    runs = training(1)
    (tmp_path / "mla").mkdir()
    (tmp_path / "mla/pair.tar").write_bytes(b"older")
    mla_plan.mla(visit, tmp_path)
    assert runs == []
    assert visit.fleet["pair-ar"].spec.models == tmp_path / "mla"
    assert results(visit)["greedy pair-ddtree8 at 8"]["answers"] == 96


@pytest.mark.parametrize(("code", "said"), [(1, "train_pair.py: 1"), (None, "too late")])
def test_without_a_trained_pair_the_mla_visit_stops_and_says_why(
    code: int | None,
    said: str,
    visit: serve_visit.Visit,
    tmp_path: Path,
    training: Callable[[int | None], list[Training]],
) -> None:
    runs = training(code)
    with pytest.raises(serve_visit.Stop, match="no trained pair"):
        mla_plan.mla(visit, tmp_path)
    error = results(visit)["errors"]["trained"]
    assert said in error and "last words of training" in error
    assert runs[0].killed is (code is None)


def test_an_mla_server_that_does_not_start_leaves_the_others_to_be_proved(
    visit: serve_visit.Visit, tmp_path: Path, training: Callable[[int | None], list[Training]]
) -> None:
    training(0)
    why = "ended with 1\nOutOfResources: shared memory"
    visit.fleet.why = {"pair-ddtree15": why, "warm-ddtree8": why}
    mla_plan.mla(visit, tmp_path)
    found = results(visit)
    assert found["errors"] == {"start warm-ddtree8": why, "start pair-ddtree15": why}
    assert found["greedy pair-ddtree7 at 8"]["equal"] == 96
    assert "greedy pair-ddtree15 at 8" not in found


def step_events(wait_inside: bool) -> list[dict[str, Any]]:
    """Six made-up steps of 500 us, one launch and one kernel each; a wait in or between steps."""
    made = []
    for n in range(6):
        at = 1000.0 * n
        whole: dict[str, Any] = {"ph": "X", "tid": 1}
        made += [
            whole | {"cat": "user_annotation", "name": step_profile.STEP, "ts": at, "dur": 500.0},
            whole | {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": at + 10, "dur": 5.0,
                     "args": {"correlation": n}},
            whole | {"cat": "kernel", "name": "k", "ts": at + 700, "dur": 50.0, "tid": 7,
                     "args": {"correlation": n}},
            whole | {"cat": "cuda_runtime", "name": "cudaEventSynchronize",
                     "ts": at + (100 if wait_inside else 600), "dur": 5.0},
            whole | {"cat": "python_function", "name": "/a/b/worker.py(3): _step", "ts": at + 1,
                     "dur": 400.0},
        ]  # fmt: skip
    return made


def test_a_profile_tells_a_wait_in_a_step_from_one_between_steps() -> None:
    inside = step_profile.summary(step_events(wait_inside=True))
    between = step_profile.summary(step_events(wait_inside=False))
    assert inside["waits_in_step"] == {"cudaEventSynchronize": 4}
    assert between["waits_in_step"] == {}
    assert between["waits_between_steps"] == {"cudaEventSynchronize": 6}
    assert between["steps"] == 4 and between["host_us_in_step"] == 500.0
    assert between["kernels_per_step"] == 1.0 and between["kernel_us_per_step"] == 50.0
    assert between["functions"] == [["worker.py(3): _step", 1.0, 400.0]]
    with pytest.raises(RuntimeError, match="says nothing"):
        step_profile.summary(step_events(wait_inside=True)[:10])


def test_answers_are_held_against_the_reference_token_for_token() -> None:
    def answer(tokens: list[int], gap: float = 1.0) -> dict[str, Any]:
        top = [[[-0.5, 1], [-0.5 - gap, 2]]] * len(tokens)
        return {"output_ids": tokens, "meta_info": {"output_top_logprobs": top}}

    wanted = [answer([1, 2, 3]), answer([1, 2, 3], gap=0.1), answer([4, 5, 6])]
    got = [answer([1, 2, 3]), answer([1, 9, 9]), answer([4, 5, 7])]
    found = serve_proofs.compared(got, wanted)
    assert (found["equal"], found["parted_near_tie"], found["parted_elsewhere"]) == (1, 1, 1)
    assert found["tokens_until_parting"] == 3 + 1 + 2
    assert found["gaps"] == [1.0, 0.1]
    short = serve_proofs.compared([answer([1, 2])], [answer([1, 2, 3])])
    assert short["equal"] == 0, "an answer that stops early is not the reference's"


def test_two_samples_of_one_law_agree_and_of_two_do_not() -> None:
    import random

    draw = random.Random(3)
    tokens, weights = list("abcdefgh"), [8, 7, 6, 5, 4, 3, 2, 1]

    def sample(weights: list[int], count: int) -> Counter[str]:
        return Counter(draw.choices(tokens, weights, k=count))

    assert two_samples.chi_square_p(sample(weights, 4000), sample(weights, 2000)) > 0.001
    assert two_samples.chi_square_p(sample(weights, 4000), sample(weights[::-1], 2000)) < 1e-9
    assert two_samples.chi_square_p(Counter("a"), Counter("b")) == 1.0  # too few to say


def test_a_tree_server_is_started_wide_enough_for_its_block() -> None:
    argv = Spec("x", Path("m"), "DDTREE", budget=3).argv(1, cpu=False)
    assert argv[argv.index("--speculative-num-draft-tokens") + 1] == "8"
    wide = Spec("x", Path("m"), "DDTREE", budget=15)
    assert wide.argv(1, cpu=False)[-5] == "16"
    assert wide.environ(Path("p"))["DDTREE_BUDGET"] == "15"
    assert "DDTREE_BUDGET" not in Spec("x", Path("m"), "DFLASH").environ(Path("p"))


def test_two_gpus_must_grow_the_same_trees(visit: serve_visit.Visit, tmp_path: Path) -> None:
    serve_plans.two(visit, tmp_path)
    found = results(visit)
    assert found["errors"].keys() == {"trees"}, "no rank of a made-up server writes trees"
    assert found["greedy tp2-ddtree8"]["equal"] == 48
    for server in visit.fleet.servers.values():
        assert server.spec.flags[:2] == ("--tp-size", "2")


@pytest.mark.parametrize(
    ("other", "differ", "first"), [("a b c", 0, []), ("a b", 0, []), ("a x c", 1, [1])]
)
def test_trees_of_two_ranks_are_compared_step_by_step(
    other: str, differ: int, first: list[int], tmp_path: Path
) -> None:
    server = MadeUp(Spec("tree", tmp_path, "DDTREE"), tmp_path)
    (server.probe / "rank1").mkdir()
    (server.probe / "trees.txt").write_text("a\nb\nc\n")
    (server.probe / "rank1/trees.txt").write_text(other.replace(" ", "\n") + "\n")
    seen = serve_proofs.same_trees(server)
    assert (seen["ranks"], seen["steps_that_differ"]) == (2, differ)
    assert seen["first_that_differs"] == first
    assert seen["steps"] == len(other.split())
