#!/usr/bin/env python3
"""Lets the installed, patched engine parse a launch line: no GPU is visible, nothing is started.

    preflight.py ENGINE_PYTHON ENV_JSON LIMIT_S OPTION ...

Runs in the engine's own environment with its plugins loaded, so what counts is what is installed
there and not what a table says. Prints one JSON object; the judgement is the controller's.
"""

import argparse
import difflib
import importlib
import json
import logging
import os
import re
import subprocess
import sys
import time
import traceback

SCHEMA = "ddops.preflight/1"


class Refused(Exception):
    """argparse's own words for a line it does not take."""


class Parser(argparse.ArgumentParser):
    def error(self, message):
        raise Refused(message)


class Kept(logging.Handler):
    """Records that somebody should read. SGLang logs a plugin's failure and swallows it."""

    def __init__(self):
        super().__init__(logging.WARNING)
        self.lines = []

    def emit(self, record):
        text = record.getMessage()
        if record.exc_info and record.exc_info[1] is not None:
            text += ": %s: %s" % (record.exc_info[0].__name__, record.exc_info[1])
        self.lines.append((record.levelname, text[:500]))


def main(argv):
    if argv[0] == "--child":
        return child(argv[1:])
    python, env, limit = argv[0], json.loads(argv[1]), float(argv[2])
    # In the environment from the very start, as at a launch: a .pth file may read it.
    env = dict(os.environ, **dict(env, CUDA_VISIBLE_DEVICES=""))
    words = [python, os.path.abspath(__file__), "--child", *argv[3:]]
    try:
        done = subprocess.run(
            words, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, timeout=limit, check=False,
        )  # fmt: skip
        sys.stdout.write(json.dumps(json.loads(done.stdout)))
    except ValueError:
        last = done.stderr.decode("utf-8", "replace").strip()[-800:]
        failed("the engine's parser ended with %d: %s" % (done.returncode, last))
    except subprocess.TimeoutExpired:
        failed("the engine's parser gave no answer within %g s" % limit)
    except OSError as error:
        failed("%s does not start: %s" % (python, error.strerror))
    return 0


def failed(why):
    json.dump(answer(why), sys.stdout)


def answer(error=None):
    return {"schema": SCHEMA, "engine": None, "faults": [], "warnings": [], "error": error}


def child(options):
    began = time.monotonic()
    out = answer()
    stdout, sys.stdout = sys.stdout, sys.stderr  # what an import prints is no answer
    kept = Kept()
    logging.getLogger().addHandler(kept)
    try:
        look(options, out, kept)
    except BaseException as error:  # an engine that cannot even be imported is an answer too
        last = traceback.extract_tb(error.__traceback__)[-1]
        out["error"] = "%s: %s (%s:%s)" % (type(error).__name__, error, last.filename, last.lineno)
    out["s"] = round(time.monotonic() - began, 3)
    json.dump(out, stdout)
    return 0


def engine(module):
    """A module of the engine, which only its own environment has."""
    return importlib.import_module(module)


def look(options, out, kept):
    out["engine"] = engine("sglang.version").__version__
    load_plugins(out, kept)
    parser = Parser(prog="sglang", add_help=False)
    engine("sglang.srt.server_args").ServerArgs.add_cli_args(parser)
    known = parser._option_string_actions
    try:
        parsed, rest = parser.parse_known_args(options)
    except Refused as error:
        written = re.search(r"--?[a-zA-Z][\w-]*", str(error))
        fault(out, written.group() if written else "the line", str(error), known)
        for word in unknown(options, known):
            fault(out, word, "the engine has no such option", known)
        return
    for word in rest:
        if word.startswith("-"):
            fault(out, word, "the engine has no such option", known)
    if rest and not out["faults"]:
        fault(out, rest[0], "belongs to no option", known)
    for word in options:
        action = known.get(word.partition("=")[0])
        words = "%s %s" % (type(action).__name__, getattr(action, "help", ""))
        if action is not None and "deprecated" in words.lower():
            out["warnings"].append("%s: %s" % (word, " ".join(str(action.help).split())[:200]))
    algorithm(getattr(parsed, "speculative_algorithm", None), out)


def unknown(options, known):
    """Words that no option begins with: argparse names one fault and stops."""
    for word in options:
        name = word.partition("=")[0]
        if name.startswith("--") and not any(k.startswith(name) for k in known):
            yield name


def fault(out, option, what, known):
    if any(f["option"] == option for f in out["faults"]):
        return
    near = difflib.get_close_matches(option.partition("=")[0], list(known), 1, 0.75)
    out["faults"].append({"option": option, "what": what, "nearest": near[0] if near else None})


def load_plugins(out, kept):
    try:
        load = engine("sglang.srt.plugins").load_plugins
    except ImportError:
        return  # a release without plugins, or the stand-in
    before = len(kept.lines)
    load()
    for level, text in kept.lines[before:]:
        if level in ("ERROR", "CRITICAL"):
            out["faults"].append({"option": "plugin", "what": text, "nearest": None})


def algorithm(name, out):
    """argparse takes any name here; a plugin that did not load shows only at the start."""
    if not name:
        return
    try:
        known = engine("sglang.srt.speculative.spec_info").SpeculativeAlgorithm
    except ModuleNotFoundError as error:
        if "sglang" not in str(error):
            raise
        return  # the stand-in knows its algorithms by its parser
    try:
        known.from_string(name)
    except (ValueError, KeyError) as error:
        out["faults"].append(
            {"option": "--speculative-algorithm", "what": str(error)[:300], "nearest": None}
        )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
