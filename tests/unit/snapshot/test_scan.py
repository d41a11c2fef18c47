"""What looks like a secret is found before it leaves the host, and named without its value.

Negative cases weigh as much: a rule that fires on SGLang's own code is a rule people switch off.
The values here are made up, and put together so that no scanner of this repository finds them.
"""

from __future__ import annotations

import base64
import json
import secrets
import string
from typing import Any

import pytest

from ddops.hostside import snap_git, snap_scan
from tests.unit.snapshot.conftest import Tree, paths

judge: Any = snap_scan.judge
bits: Any = snap_scan.bits


def drawn(count: int, letters: str = string.ascii_letters + string.digits) -> str:
    """Random letters with a digit among them for sure."""
    return "".join(secrets.choice(letters) for _ in range(count - 2)) + "7q"


UPPER = string.ascii_uppercase + string.digits
KEY_BODY = base64.encodebytes(secrets.token_bytes(120)).decode()

SECRETS = {
    "private-key": f"-----BEGIN OPENSSH PRIVATE KEY-----\n{KEY_BODY}-----END",
    "private-key pem": f"-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n\n{KEY_BODY}",
    "hub-token": f"token = h{'f_'}{drawn(34)}",
    "cloud-access-key": f"id: {'AK'}IA{drawn(14, UPPER).upper()}QZ",
    "forge-token": f"x gh{'p_'}{drawn(36)}",
    "forge-token new": f"gith{'ub_pat_'}{drawn(70)}",
    "forge-token other": f"gl{'pat-'}{drawn(20)}",
    "api-key": f"key=s{'k-'}{drawn(40)}",
    "chat-token": f"xo{'xb-'}{drawn(30)}",
    "maps-key": f"AI{'za'}{drawn(35)}",
    "password-in-url": f"https://ann:{drawn(14)}@git.internal/x.git",
    "named-secret": f'api_key = "{drawn(24)}"',
    "named-secret json": f'{{"client_secret": "{drawn(30)}"}}',
    "named-secret annotated": f"access_token: str = '{drawn(28)}'",
    "named-secret env": f"export HF_TOKEN={drawn(36)}",
}

INNOCENT = {
    "documentation": 'set api_key = "your-api-key-goes-here-1234" first',
    "placeholder": 'password = "changeme-changeme-1"',
    "environment": 'api_key = os.environ["OPENAI_API_KEY"]',
    "getenv": "token = getenv('HF_TOKEN_NAME_12345678')",
    "token ids": 'eos_token = "<|endoftext_with_a_long_name_1|>"',
    "token name": 'pad_token = "a_plain_lowercase_identifier"',
    "a path": 'secret_key = "config/keys/server_key2.pem"',
    "a hash": 'checksum = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"',
    "a public key": f"-----BEGIN PUBLIC KEY-----\n{KEY_BODY}-----END PUBLIC KEY-----",
    "a key marker in code": 'if "-----BEGIN RSA PRIVATE KEY-----" in text:\n    raise ValueError',
    "url with a port": "http://localhost:30000/v1/models@latest",
    "example url": "https://user:secret@example.org/v1",
    "a decorator": "hf_config: PretrainedConfig = hf_text_config_for_the_draft_model",
    "task name": "sk-learn-like-estimators-and-other-words",
    "short": 'password = "x1"',
    "a template": 'api_key = "${API_KEY_FOR_THE_SERVER_1}"',
    "region": "asia-southeast1-docker.pkg.dev",
    "uuid variable": "request_token_count_1 = 'abc'",
}


@pytest.mark.parametrize("name", SECRETS)
def test_a_secret_is_found_with_its_line(name: str) -> None:
    data = f"first line\n{SECRETS[name]}\nlast\n".encode()
    assert judge(b"sglang/x.py", data) == [(name.split(" ")[0], 2)]


@pytest.mark.parametrize("name", INNOCENT)
def test_what_is_none_is_let_through(name: str) -> None:
    assert judge(b"sglang/x.py", f"{INNOCENT[name]}\n".encode()) == []


@pytest.mark.parametrize("name", [".env", "id_ed25519", ".netrc", "keys/x.p12"])
def test_files_that_are_secrets_by_name(name: str) -> None:
    assert ("secret-file", 1) in judge(name.encode(), b"anything")
    assert judge(name.encode(), b"\n") == [], "nothing is in it"
    assert judge(b"x.env.example", b"anything") == []


def test_a_compiled_file_is_looked_at_for_keys_alone() -> None:
    noise = secrets.token_bytes(5000)
    assert judge(b"x.so", b"\x7fELF" + noise + SECRETS["named-secret"].encode()) == []
    assert judge(b"x.so", b"\x7fELF" + noise + SECRETS["private-key"].encode())


def test_entropy_tells_words_from_keys() -> None:
    assert bits(b"aaaaaaaaaaaaaaaa") == 0
    assert bits(drawn(40).encode()) > 4


def test_nothing_leaves_before_the_scan_and_no_value_is_shown(tree: Tree) -> None:
    value = drawn(34)
    tree.write("sglang/conf.py", f"a\nb = 1\nt = 'h{'f_'}{value}'\n".encode())
    answer = tree.snap()
    assert answer["state"] == "secrets"
    assert answer["hits"] == [{"path": "sglang/conf.py", "rule": "hub-token", "line": 3}]
    assert value not in json.dumps(answer)
    assert "pack" not in answer
    assert "commit" not in answer
    assert tree.git("for-each-ref") == b""
    assert tree.snap()["state"] == "secrets", "again: still refused"


def test_an_allowed_file_is_allowed_as_it_is_and_asked_about_when_it_changes(tree: Tree) -> None:
    tree.write("a.py", SECRETS["named-secret"].encode())
    assert tree.snap(allow=["a.*"])["allowed"] == ["a.py"]
    tree.write("other.py", b"x = 1\n")
    assert tree.snap()["state"] == "ok", "what was looked at is not looked at again"
    tree.write("a.py", SECRETS["named-secret json"].encode())
    again = tree.snap()
    assert again["state"] == "secrets"
    assert paths(again["hits"]) == ["a.py"]
    tree.write("a.py", b"clean = True\n")
    assert tree.snap()["allowed"] == []


def test_patterns_of_allowed_files() -> None:
    made: Any = snap_git.Allow
    allow = made(["a/*.py", "deep/**", "plain.txt", "odd[1].py"])
    assert allow("a/x.py")
    assert not allow("a/b/x.py")
    assert allow("deep/er/and/deeper")
    assert allow("plain.txt")
    assert not allow("plain.txt.bak")
    assert allow("odd[1].py")
    assert not allow("odd1.py")


def test_a_refusal_does_not_make_the_next_run_take_what_was_before(tree: Tree) -> None:
    first = tree.snap()
    tree.write("leak.py", SECRETS["named-secret"].encode())
    tree.write("good.py", b"x = 1\n")
    assert tree.snap()["state"] == "secrets"
    assert tree.snap()["state"] == "secrets"
    (tree.root / "leak.py").unlink()
    after = tree.snap(have=[first["commit"]])
    assert after["state"] == "ok"
    assert b"good.py" in tree.ls(after["commit"])
