"""Commands, secrets and redaction."""

from __future__ import annotations

import copy
import dataclasses
import json
import os
import pickle
import subprocess
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddops.command import Cmd, Redactor, Secret, cmd, python, sh

CANARY = "c4n4ry-value"

words = st.lists(
    st.one_of(
        st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])),
        st.binary().map(lambda b: b.replace(b"\0", b"").decode("utf-8", "surrogateescape")),
    ),
    max_size=5,
)


def shell(command: Cmd) -> bytes:
    text = command.render().encode("utf-8", "surrogateescape")
    done = subprocess.run([b"/bin/sh", b"-c", text], capture_output=True, check=False)
    assert done.stderr == b""
    return done.stdout


@settings(max_examples=80, deadline=None)
@given(args=words)
def test_a_real_shell_gets_the_words_unchanged(args: list[str]) -> None:
    out = shell(cmd("printf", "%s\\0", "first", *args))
    assert out == b"".join(os.fsencode(w) + b"\0" for w in ["first", *args])


@settings(max_examples=40, deadline=None)
@given(
    value=st.binary().map(lambda b: b.replace(b"\0", b"").decode("utf-8", "surrogateescape")),
    args=words,
)
def test_scripts_get_environment_and_arguments_unchanged(value: str, args: list[str]) -> None:
    script = 'printf "%s\\0" "$DDOPS_X" "$@"'
    out = shell(sh(script, *args, env={"DDOPS_X": value}))
    assert out == b"".join(os.fsencode(w) + b"\0" for w in [value, *args])


@pytest.mark.parametrize("name", ["if", "a=b", "{", "!", "-x", "x y", "it's", "~", "", "$x", "-"])
def test_a_program_of_any_name_is_run_as_a_program(name: str) -> None:
    done = subprocess.run(
        ["/bin/sh", "-c", cmd(name, "true").render()], capture_output=True, text=True, check=False
    )
    assert done.returncode in (126, 127), "syntax, an assignment or another program"
    assert "not found" in done.stderr or "ermission denied" in done.stderr


def test_working_directory_with_odd_characters(tmp_path: Path) -> None:
    odd = tmp_path / "a 'b'\n$c"
    odd.mkdir()
    assert shell(cmd("pwd", cwd=str(odd))) == os.fsencode(odd) + b"\n"
    assert shell(cmd("printenv", "A", cwd=str(odd), env={"A": "1"})) == b"1\n"


def test_a_failed_change_of_directory_runs_nothing() -> None:
    text = cmd("echo", "ran", cwd="/no/such/place").render()
    done = subprocess.run(["/bin/sh", "-c", text], capture_output=True, check=False)
    assert (done.returncode != 0, done.stdout) == (True, b"")


@pytest.mark.parametrize(
    "make",
    [
        lambda: Cmd(()),
        lambda: cmd("a\0b"),
        lambda: cmd("a", env={"A": "\0"}),
        lambda: cmd("a", env={"A-B": "x"}),
        lambda: cmd("a", env={"A\n": "x"}),
        lambda: cmd("a", env={"": "x"}),
        lambda: cmd("a", cwd="relative"),
        lambda: cmd("a", "\ud800"),
        lambda: cmd("a=b", env={"A": "x"}).render(),
    ],
)
def test_what_cannot_be_a_command(make: object) -> None:
    with pytest.raises(ValueError):
        make()  # type: ignore[operator]


def test_a_secret_cannot_be_a_word_or_an_environment_value() -> None:
    with pytest.raises(TypeError) as caught:
        cmd("a", Secret(CANARY))  # type: ignore[arg-type]
    assert CANARY not in str(caught.value)
    with pytest.raises(TypeError):
        cmd("a", env={"A": Secret(CANARY)})  # type: ignore[dict-item]


def test_python_goes_by_standard_input() -> None:
    command = python("import sys; print(sys.argv[1:])", "a b")
    assert command.argv == ("python3", "-I", "-S", "-", "a b")
    assert command.stdin_bytes() == b"import sys; print(sys.argv[1:])"


def test_standard_input_of_a_secret() -> None:
    assert cmd("a", stdin=Secret("é\udcff")).stdin_bytes() == "é".encode() + b"\xff"
    assert cmd("a").with_stdin(b"x").stdin_bytes() == b"x"
    assert cmd("a").stdin_bytes() is None


def test_a_secret_shows_nowhere() -> None:
    secret = Secret(CANARY, "env:TOKEN")
    command = cmd("login", stdin=secret)
    shown = [
        str(secret),
        repr(secret),
        f"{secret}",
        f"{secret!r:>30}",
        f"{secret:>10}",
        "%s %r" % (secret, secret),  # noqa: UP031 - the old way must be as safe
        "{} {!r}".format(secret, secret),  # noqa: UP032
        str([secret]),
        str({"a": secret}),
        json.dumps({"a": secret}, default=str),
        repr(command),
        str(command),
        str(dataclasses.fields(command)),
    ]
    assert CANARY not in " ".join(shown)
    assert str(secret) == "***"
    assert repr(secret) == "Secret(env:TOKEN)"
    with pytest.raises(TypeError):
        json.dumps(secret)
    assert not hasattr(secret, "__dict__")


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_secret_is_never_pickled(protocol: int) -> None:
    with pytest.raises(TypeError, match="never pickled"):
        pickle.dumps(Secret(CANARY), protocol)
    with pytest.raises(TypeError):
        copy.deepcopy(cmd("a", stdin=Secret(CANARY)))


def test_secrets_compare_by_value() -> None:
    assert Secret("a", "env:A") == Secret("a", "file:b")
    assert Secret("a") != Secret("b")
    assert Secret("a") != "a"
    assert len({Secret("a"), Secret("a")}) == 1
    assert Secret("a").reveal() == "a"


@pytest.mark.parametrize(
    "text",
    [
        f"api_key={CANARY}",
        f"admin_api_key='{CANARY}'",
        f'"api_key": "{CANARY}"',
        f'{{\\"api_key\\": \\"{CANARY}\\", \\"model\\": 1}}',
        f"server_args=ServerArgs(model='m', api_key='{CANARY}', port=1)",
        f"--api-key {CANARY} --port 1",
        f"--api-key={CANARY}",
        f"['--api-key', '{CANARY}', '--port', '1']",
        f'["--admin-api-key", "{CANARY}"]',
        f"password: {CANARY}",
        f'password: "two words {CANARY}"',
        f"password='cut off {CANARY}",
        f'"passphrase": "a\\"b {CANARY}"',
        f"HF_TOKEN={CANARY} sglang",
        f"GITHUB_TOKEN: {CANARY}",
        f"AWS_SECRET_ACCESS_KEY={CANARY}",
        f"Authorization: Bearer {CANARY}",
        f"authorization: Basic {CANARY}",
        f"using bearer {CANARY}",
        f"https://user:{CANARY}@host/path",
        f"-----BEGIN OPENSSH PRIVATE KEY-----\n{CANARY}\n-----END OPENSSH PRIVATE KEY-----",
        f"-----BEGIN PRIVATE KEY-----\n{CANARY} cut",
    ],
)
def test_shapes_of_secrets_are_masked(text: str) -> None:
    masked = Redactor()(text)
    assert CANARY not in masked
    assert "***" in masked
    assert Redactor()(masked) == masked


@pytest.mark.parametrize(
    "token",
    [
        "hf_AbCdEfGhIjKlMnOpQrStUvWxYz01234567",
        "sk-proj-abcdefghijklmnop1234",
        "ghp_0123456789abcdefghij",
        "github_pat_0123456789abcdefghij",
        "glpat-0123456789abcdefghij",
        "xoxb-0123456789-abcdefghij",
        "AKIAIOSFODNN7EXAMPLE",
    ],
)
def test_tokens_are_known_by_their_form(token: str) -> None:
    assert Redactor()(f"got {token}.") == "got ***."


@pytest.mark.parametrize(
    "text",
    [
        "max_total_tokens=4096",
        '"max_total_num_tokens": 123456',
        "max_new_tokens: 5, num_prompt_tokens=3",
        "tokenizer_path='/models/k26' tokenizer_mode='auto'",
        "api_key=None, admin_api_key=None",
        '"api_key": null, "password": false, "secret": ""',
        "--api-key-file /etc/key --port 30000",
        "hf_text_config.architectures hf_overrides hf_transfer_enabled",
        "region asia-southeast1-b",
        "http://127.0.0.1:30000/v1/models",
        "ssh root@host:22",
        "sort_key=3 monkey=4 public_key=abc key=5",
        "passwordless=yes",
        "task-scheduler-with-long-name disk-encryption-enabled",
        "Accept length: 4.2, token usage: 0.31",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert Redactor()(text) == text


def test_json_stays_json() -> None:
    text = json.dumps({"api_key": "a, b}", "nested": [{"password": "x'y"}], "port": 1})
    assert json.loads(Redactor()(text)) == {
        "api_key": "***",
        "nested": [{"password": "***"}],
        "port": 1,
    }


@pytest.mark.parametrize("line", ["m" * 200_000, "-" * 200_000, "a-b_" * 50_000, '"' * 200_000])
def test_long_words_take_no_quadratic_time(line: str) -> None:
    start = time.process_time()
    assert Redactor()(line) == line
    assert time.process_time() - start < 2


def test_known_values_are_masked_anywhere() -> None:
    redact = Redactor([Secret("first-secret")])
    redact.add(Secret("line one\nline two\n"))
    redact.add(Secret("abc"))
    assert redact("xfirst-secretx abc") == "x***x abc"
    assert redact("only line two here") == "only *** here"


def test_the_longest_value_goes_first() -> None:
    redact = Redactor([Secret("abcd"), Secret("abcdefgh")])
    assert redact("abcdefgh") == "***"


def test_tree() -> None:
    redact = Redactor([Secret(CANARY)])
    tree = redact.tree(
        {
            "argv": ["--api-key", "anything", "--port", "1"],
            "flags": ["--no-secret", "--port"],
            "api_key": "x y z",
            "server.admin_api_key": ["a", "b"],
            "password": 1234,
            "hf_token": None,
            "secret": "",
            "signing_key": True,
            "note": f"is {CANARY}",
            "raw": f"{CANARY} ÿ".encode(),
            "error": ValueError(CANARY),
            "secret-typed": Secret("zzz"),
            "deep": ({"x": [Secret("zzz"), 1.5, None]},),
            CANARY: 1,
            "max_total_tokens": 4096,
        }
    )
    assert tree == {
        "argv": ["--api-key", "***", "--port", "1"],
        "flags": ["--no-secret", "--port"],
        "api_key": "***",
        "server.admin_api_key": "***",
        "password": "***",
        "hf_token": None,
        "secret": "",
        "signing_key": True,
        "note": "is ***",
        "raw": "*** ÿ",
        "error": "***",
        "secret-typed": "***",
        "deep": [{"x": ["***", 1.5, None]}],
        "***": 1,
        "max_total_tokens": 4096,
    }
    json.dumps(tree)
