"""Answers taken apart on the host: framing, events, bounds, counts, outcomes."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddops.hostside.load.http1 import Framing, Malformed, request_bytes
from ddops.hostside.load.parse import event_data
from tests.unit.bench.support import (
    DONE,
    END,
    HEAD,
    MS,
    ROLE,
    chunk,
    closing,
    even,
    event,
    exchange,
    native,
    read,
    stream,
    usage,
)


def body(tokens: int) -> bytes:
    return b"".join(chunk(native(c)) for c in range(1, tokens + 1)) + chunk(DONE) + END


@given(cuts=st.lists(st.integers(1, 400), max_size=30))
@settings(max_examples=60, deadline=None)
def test_the_end_is_found_however_the_bytes_are_cut(cuts: list[int]) -> None:
    whole = HEAD + body(5)
    framing, raw, pos, ends = Framing(), bytearray(), 0, []
    for size in [*cuts, len(whole)]:
        if pos >= len(whole):
            break
        raw += whole[pos : pos + size]
        pos += size
        ends.append(framing.done(raw))
    assert ends[-1] is True
    assert not any(ends[:-1])


def test_a_content_that_looks_like_the_end_is_not_taken_for_it() -> None:
    framing = Framing()
    trap = b"data: 0\r\n\r\n"
    raw = bytearray(HEAD + b"%x\r\n%s" % (len(trap) + 4, trap))
    assert raw.endswith(b"0\r\n\r\n")
    assert framing.done(raw) is False
    assert framing.done(bytearray(raw + b"\r\n\r\n\r\n" + END)) is True


def test_a_long_answer_ends_without_a_walk_over_its_chunks() -> None:
    """The walk would hold up the loop, and with it the first events of other answers."""
    framing, whole = Framing(), bytearray(HEAD + body(300))
    assert framing.done(whole) is True
    assert framing.scan == framing.head_end
    without = Framing()
    assert without.done(bytearray(whole.replace(chunk(DONE), b""))) is True
    assert without.scan > without.head_end


@pytest.mark.parametrize(
    "raw", [b"SSH-2.0-x\r\n\r\n", b"HTTP/1.1 abc\r\n\r\n", HEAD + b"zz\r\n\r\n\r\n", b"x" * 70000]
)
def test_what_is_no_http_is_said_to_be_none(raw: bytes) -> None:
    with pytest.raises(Malformed):
        Framing().done(bytearray(raw))


def test_lengths_and_close() -> None:
    framing = Framing()
    assert framing.done(bytearray(b"HTTP/1.1 503 x\r\nContent-Length: 2\r\n\r\nno")) is True
    assert framing.status == 503
    framing = Framing()
    assert framing.done(bytearray(b"HTTP/1.0 200 x\r\n\r\nall")) is False
    assert framing.ends_at_close()
    assert not framing.keep


def test_a_request_holds_its_length_and_key() -> None:
    raw = request_bytes("/generate", b"{}", "127.0.0.1", 1, "k1", close=True)
    head, _, rest = raw.partition(b"\r\n\r\n")
    assert rest == b"{}"
    assert b"Content-Length: 2" in head
    assert b"Authorization: Bearer k1" in head
    assert b"Connection: close" in head


def test_fields_and_comments_around_the_data() -> None:
    assert event_data(b": ping\ndata: a\ndata: b\nid: 1") == b"a\nb"
    assert event_data(b": only a comment") == b""


def test_one_event_a_read_is_known_exactly() -> None:
    sample = even(3, 40.0)
    assert [(c.lo, c.hi) for c in sample.chunks] == [(c.hi, c.hi) for c in sample.chunks]
    assert [c.hi for c in sample.chunks] == [50 * MS, 90 * MS, 130 * MS]


def test_several_events_in_one_read_are_bounded_by_the_read_before() -> None:
    two = chunk(native(2)) + chunk(native(3))
    sample = read([(10, HEAD + chunk(native(1))), (30, two), (31, chunk(DONE) + END)])
    assert [(c.lo // MS, c.hi // MS) for c in sample.chunks] == [(10, 10), (10, 30), (30, 30)]


def test_an_event_cut_over_two_reads_came_with_its_last_byte() -> None:
    whole = chunk(native(1))
    sample = read([(10, HEAD + whole[:20]), (25, whole[20:]), (26, chunk(DONE) + END)])
    assert [c.hi // MS for c in sample.chunks] == [25]
    assert sample.first_byte == 10 * MS


def test_without_kernel_stamps_the_bound_is_the_last_look_at_an_empty_socket() -> None:
    made = exchange([(10, HEAD + chunk(native(1))), (30, chunk(DONE) + END)])
    made.lows[0] = 4 * MS + 1
    from ddops.hostside.load.parse import sample as parse

    raw = parse(made, {"id": "p"}, "generate", 1, {})
    assert (raw["lo"][0], raw["hi"][0]) == (4 * MS, 10 * MS)


def test_ids_and_text_cumulative_or_in_pieces() -> None:
    assert even(4, 10).output_ids == (0, 1, 2, 3)
    pieces = [
        event({"text": t, "output_ids": [i], "meta_info": {"completion_tokens": i + 1,
               "weight_version": "v", "finish_reason": None}})
        for i, t in enumerate("abc")
    ]  # fmt: skip
    sample = read(stream([(i, p) for i, p in enumerate(pieces)]))
    assert sample.output_ids == (0, 1, 2)
    assert sample.text == "abc"


@pytest.mark.parametrize(
    ("reads", "error", "outcome"),
    [
        ([(1, b"HTTP/1.1 503 x\r\nContent-Length: 4\r\n\r\nbusy")], "", "http_503"),
        (stream([(1, native(1))], ending=b""), "", "truncated"),
        ([(1, HEAD + chunk(native(1)))], "closed by the server", "truncated"),
        ([], "closed by the server", "broken"),
        ([], "timeout", "timeout"),
        ([], "deadline", "unfinished"),
        ([], "connect: ECONNREFUSED", "refused"),
        (stream([(1, event({"error": {"message": "out of memory"}}))]), "", "error_event"),
        (stream([(1, native(1, finish_reason={"type": "abort", "message": "x"}))]), "",
         "error_event"),
        (stream([(1, event({"text": "x", "meta_info": {"weight_version": "v"}}))]), "", "no_usage"),
        (stream([(1, b"data: {not json}\n\n")]), "", "malformed"),
        (stream([(1, b"data: [1, 2]\n\n")]), "", "malformed"),
        (stream([]), "", "no_usage"),
    ],
)  # fmt: skip
def test_each_way_to_fail_has_its_name(
    reads: list[tuple[float, bytes]], error: str, outcome: str
) -> None:
    sample = read(reads, error=error)
    assert sample.outcome == outcome
    assert not sample.ok
    if reads:
        assert sample.raw  # what failed is kept, byte for byte


def test_the_bytes_of_a_good_answer_are_not_kept() -> None:
    assert even(2, 10).raw == b""


def test_chat_chunks_carry_counts_and_kinds() -> None:
    events = [(1, ROLE), (50, usage(1)), (60, usage(3)), (61, closing(3))]
    sample = read(stream(events), "chat")
    assert sample.ok
    assert sample.tokens == 3
    assert [c.tokens for c in sample.chunks] == [1, 2]
    assert sample.versions == ()


def test_completions_count_from_the_choice_itself() -> None:
    events = [
        (i, event({"choices": [{"index": 0, "text": "a"}], "usage": {"completion_tokens": i}}))
        for i in (1, 2)
    ]
    sample = read(stream([*events, (3, closing(2))]), "completions")
    assert sample.text == "aa"
    assert [c.tokens for c in sample.chunks] == [1, 1]


def test_reads_of_any_bytes_never_raise() -> None:
    for raw in (b"", b"\0" * 50, HEAD, HEAD + b"ffffffff\r\n", HEAD + chunk(b"\xff\xfe")):
        made = [(1.0, raw)] if raw else []
        try:
            outcome = read(made, error="closed by the server").outcome
        except Malformed:
            continue  # the loop ends such an answer as malformed before it is parsed
        assert outcome in ("truncated", "malformed", "broken")


def test_what_the_parser_gives_is_json() -> None:
    from ddops.hostside.load.parse import sample as parse

    raw = parse(exchange(stream([(1, native(1))])), {"id": "p"}, "generate", 1, {})
    assert json.loads(json.dumps(raw)) == raw
