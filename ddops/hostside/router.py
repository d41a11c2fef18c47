#!/usr/bin/env python3
"""Speaks with the router of a service, on the router's host. Prints JSON.

    router.py SERVICE_DIR HOST PORT VERB ...

    look URL...           what it serves, and who each replica says it is
    remove URL            no new request goes there from now on
    add URL SECONDS       until the router calls it healthy
    running URL           requests at work there, by its own word
    ask VERSION MODEL SECONDS   until that start answers through the router

`remove` never takes the last healthy replica away, and two at once cannot either: changes wait
for each other. What the router should serve is kept in run/replicas.json beside it; see
router_start.py. A router counts nothing of a replica that was removed, though its requests go on:
so `running` asks the replica itself.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import fcntl
import http.client
import json
import os
import re
import sys
import time
import urllib.parse

SCHEMA = "ddops.router/1"
HTTP_S = 6.0
#: A change of the router's list is queued there, and done within milliseconds.
CHANGE_S = 15.0
POLL_S = 0.05
#: An answer that is under way while the next is given its place.
ASKED_TOKENS = 8
VERBS = ("look", "remove", "add", "running", "ask")
ANYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1", "[::]": "::1"}  # noqa: S104 - asked over loopback
GAUGE = re.compile(r"^sglang:(num_running_reqs|num_queue_reqs)(?:\{[^}]*\})? (\S+)$", re.M)


def main(argv):
    where, host, port, verb = argv[:4]
    router = Router(where, ANYWHERE.get(host, host).strip("[]"), int(port))
    if verb not in VERBS:
        sys.stderr.write("no verb %r, known are %s\n" % (verb, ", ".join(VERBS)))
        return 64
    json.dump({"schema": SCHEMA, **getattr(router, verb)(*argv[4:])}, sys.stdout)
    return 0


class Router:
    def __init__(self, where, host, port):
        self.where = where
        self.base = "http://%s:%d" % ("[%s]" % host if ":" in host else host, port)
        self.key = api_key(where)
        self.control = control_key(where)

    # ---- what it serves

    def look(self, *urls):
        seen = self.members()
        asked = list(dict.fromkeys([*urls, *(w["url"] for w in seen.get("replicas", ()))]))
        return {**seen, "kept": self.kept(), "said": self.ask_all(asked)}

    def members(self):
        """`state` is down only where nobody listens; what answers otherwise is unknown."""
        answer = call(self.base + "/workers", self.control)
        if answer["status"] != 200:
            state = "down" if answer.get("refused") else "unknown"
            return {"state": state, "why": answer.get("error") or "HTTP %s" % answer["status"]}
        rows = json.loads(answer["body"])["workers"]
        ready = call(self.base + "/readiness", self.key)["status"] == 200
        return {
            "state": "up",
            "ready": ready,
            "replicas": [
                {"id": r["id"], "url": r["url"].rstrip("/"), "healthy": r["is_healthy"] is True}
                for r in rows
            ],
        }

    def ask_all(self, urls):
        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            return dict(zip(urls, pool.map(self.identity, urls)))

    def identity(self, url):
        answer = call(url + "/model_info", self.key)
        if answer["status"] != 200:
            return {"error": answer.get("error") or "HTTP %s" % answer["status"]}
        try:
            return {"weight_version": json.loads(answer["body"])["weight_version"]}
        except (ValueError, KeyError, TypeError) as error:
            return {"error": "/model_info is not readable: %s" % error}

    def answering(self, urls):
        """Who of them answers now, and what is wrong with the rest: for the router itself a
        replica that hangs is healthy for some time more."""
        said = self.ask_all(urls)
        silent = ["%s: %s" % (u, a["error"]) for u, a in said.items() if "error" in a]
        return [u for u, a in said.items() if "error" not in a], "; ".join(silent)

    # ---- its list

    def remove(self, url):
        with self.alone():
            seen = self.members()
            if seen["state"] == "up":
                here = [r for r in seen["replicas"] if r["url"] == url]
                others, silent = self.answering(
                    [r["url"] for r in seen["replicas"] if r["healthy"] and r["url"] != url]
                )
                if any(r["healthy"] for r in here) and not others:
                    return {**seen, "removed": False, "last": True, "why": silent}
                self.keep([u for u in self.kept() if u != url])
                for row in here:
                    call("%s/workers/%s" % (self.base, row["id"]), self.control, "DELETE")
                gone = self.until(lambda now: all(r["url"] != url for r in now), CHANGE_S)
                return {
                    **seen,
                    "removed": bool(here) and gone,
                    "stays": not gone,
                    "others": len(others),
                }
            if seen["state"] == "down":
                self.keep([u for u in self.kept() if u != url])
            return {**seen, "removed": False}

    def add(self, url, seconds):
        with self.alone():
            self.keep([*(u for u in self.kept() if u != url), url])
            seen = self.members()
            if seen["state"] != "up":
                return {**seen, "added": False}
            if all(r["url"] != url for r in seen["replicas"]):
                body = {"url": url, **({"api_key": self.key} if self.key else {})}
                answer = call(self.base + "/workers", self.control, "POST", body)
                if answer["status"] not in (200, 201, 202):
                    why = answer.get("error") or "HTTP %s" % answer["status"]
                    return {**self.members(), "added": False, "why": why}
            ok = self.until(
                lambda now: any(r["url"] == url and r["healthy"] for r in now), float(seconds)
            )
            return {**self.members(), "added": ok}

    def until(self, wanted, seconds):
        end = time.monotonic() + seconds
        while True:
            seen = self.members()
            if seen["state"] == "up" and wanted(seen["replicas"]):
                return True
            if time.monotonic() > end:
                return False
            time.sleep(POLL_S)

    def kept(self):
        try:
            with open(os.path.join(self.where, "run", "replicas.json"), encoding="utf-8") as f:
                return json.load(f)
        except FileNotFoundError:
            return []

    def keep(self, urls):
        path = os.path.join(self.where, "run", "replicas.json")
        temp = "%s.%d" % (path, os.getpid())
        with open(temp, "w", encoding="utf-8") as f:
            json.dump(urls, f)
            f.flush()
            os.fsync(f.fileno())
        os.replace(temp, path)

    def alone(self):
        folder = os.path.join(self.where, "run")
        os.makedirs(folder, mode=0o700, exist_ok=True)
        return locked(os.path.join(folder, "replicas.lock"))

    # ---- requests

    def running(self, url):
        """Requests that a replica has at work or in its queue; null where it does not tell."""
        answer = call(url + "/v1/loads", self.key)
        if answer["status"] == 200:
            found = counted(answer["body"])
            if found is not None:
                return {"running": found, "by": "/v1/loads"}
        metrics = call(url + "/metrics", self.key)
        values = [float(v) for _, v in GAUGE.findall(metrics.get("body", ""))]
        if metrics["status"] == 200 and values:
            return {"running": int(sum(values)), "by": "/metrics"}
        why = "/v1/loads: %s, /metrics: %s" % tuple(
            a.get("error") or "HTTP %s" % a["status"] for a in (answer, metrics)
        )
        return {"running": None, "by": "", "why": why, "refused": bool(answer.get("refused"))}

    def ask(self, version, model, seconds):
        """Small requests through the router until the start of that name has answered one.

        Several at once: a router that knows a prompt from nowhere gives it to the replica with the
        least to do, and of idle ones always to the same.
        """
        end, tries = time.monotonic() + float(seconds), 0
        others: dict[str, int] = {}
        while True:
            many = 2 * max(1, len(self.members().get("replicas", ())))
            with concurrent.futures.ThreadPoolExecutor(many) as pool:
                answers = list(pool.map(self.ask_once, [model] * many))
            tries += many
            for said in answers:
                others[said] = others.get(said, 0) + 1
            if others.pop(version, 0):
                return {"answered": True, "tries": tries, "others": others}
            if time.monotonic() > end:
                return {"answered": False, "tries": tries, "others": others}
            time.sleep(POLL_S)

    def ask_once(self, model):
        """Who answered a prompt that nobody has asked before."""
        body = {"model": model, "prompt": os.urandom(16).hex(), "max_tokens": ASKED_TOKENS}
        answer = call(self.base + "/v1/completions", self.key, "POST", body)
        try:
            return str(json.loads(answer["body"])["metadata"]["weight_version"])
        except (ValueError, KeyError, TypeError):
            return answer.get("error") or "HTTP %s" % answer["status"]


@contextlib.contextmanager
def locked(path):
    """Who waits for the file is let in one after the other."""
    with open(path, "w", encoding="utf-8") as f:
        fcntl.flock(f, fcntl.LOCK_EX)
        yield


def counted(body):
    """Of /v1/loads: all ranks' requests, running and waiting; null where it names none."""
    try:
        rows = json.loads(body)["loads"]
        return sum(int(r["num_running_reqs"]) + int(r["num_waiting_reqs"]) for r in rows)
    except (ValueError, KeyError, TypeError):
        return None


def call(url, key, method="GET", body=None, limit=4 << 20):
    """One request on a connection of its own, bounded in time and size; errors are answers too."""
    parts = urllib.parse.urlsplit(url)
    client = http.client.HTTPConnection(parts.hostname, parts.port, timeout=HTTP_S)
    headers = {"Authorization": "Bearer " + key} if key else {}
    if body is not None:
        headers["Content-Type"] = "application/json"
    try:
        data = None if body is None else json.dumps(body)
        client.request(method, parts.path, body=data, headers=headers)
        answer = client.getresponse()
        return {"status": answer.status, "body": answer.read(limit).decode("utf-8", "replace")}
    except ConnectionRefusedError:
        return {"status": None, "body": "", "error": "nobody listens there", "refused": True}
    except (OSError, http.client.HTTPException) as error:
        return {"status": None, "body": "", "error": "%s: %s" % (type(error).__name__, error)}
    finally:
        client.close()


def control_key(where):
    """What router_start.py made; null before the router's first start."""
    try:
        with open(os.path.join(where, "run", "control.key"), encoding="ascii") as f:
            return f.read()
    except FileNotFoundError:
        return None


def api_key(where):
    try:
        with open(os.path.join(where, "current", "secret-args.yaml"), encoding="utf-8") as f:
            return json.load(f)["api-key"]
    except FileNotFoundError:
        return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
