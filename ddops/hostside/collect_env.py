"""What the engine's own interpreter says of its environment; heavy imports in children.

The collector sends this followed by `ELF_SOURCE = ...` and `main()`. Prints one JSON object.
"""

import concurrent.futures
import glob
import importlib.metadata
import importlib.util
import json
import os
import re
import subprocess
import sys
import sysconfig

PACKAGES = (
    "sglang", "torch", "triton", "sglang-kernel", "sgl-kernel", "flashinfer-python",
    "flashinfer-jit-cache", "flashinfer-cubin", "sgl-deep-gemm", "deep-gemm", "nvidia-nccl-cu12",
    "nvidia-nccl-cu13", "nvidia-cudnn-cu12", "nvidia-cudnn-cu13", "transformers", "xgrammar",
    "apache-tvm-ffi", "nvidia-cuda-nvcc", "nvidia-cuda-runtime", "nvidia-cuda-runtime-cu12",
    "sgl-flash-mla", "nvidia-cutlass-dsl", "cuda-python", "torchvision", "torchaudio",
)  # fmt: skip
TORCH_CHILD = """
import json, torch
out = {"version": torch.__version__, "cuda": torch.version.cuda}
# get_arch_list() answers [] without a visible GPU; what the build holds does not depend on one.
out["archs"] = (torch._C._cuda_getArchFlags() or "").split() if torch.version.cuda else []
out["abi"] = bool(torch._C._GLIBCXX_USE_CXX11_ABI)
print(json.dumps(out))
"""
KERNEL_CHILD = "import torch, sgl_kernel; print('{}')"
ELF_SOURCE = ""


def main():
    with concurrent.futures.ThreadPoolExecutor(2) as pool:  # each imports torch, for seconds
        torch = pool.submit(child, TORCH_CHILD, 30)
        kernel = pool.submit(child, KERNEL_CHILD, 30, gpus=True)
        out = {
            "python": "%d.%d.%d" % sys.version_info[:3],
            "free_threaded": bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
            "prefix": sys.prefix,
            "python_h": os.path.exists(os.path.join(sysconfig.get_paths()["include"], "Python.h")),
            "packages": packages(),
            "requires": requires("sglang") + requires("sglang-kernel"),
            "ptxas": ptxas(),
            "nvcc": nvcc(),
            "objects": objects(),
        }
        out.update(torch=torch.result(), kernel_import=kernel.result())
    json.dump(out, sys.stdout)


def packages():
    out = {}
    for name in PACKAGES:
        try:
            out[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return out


def requires(name):
    """Plain pins of a distribution, markers and extras left out: ["torch==2.14.1"]."""
    try:
        found = importlib.metadata.requires(name) or []
    except importlib.metadata.PackageNotFoundError:
        return []
    out = []
    for line in found:
        spec, _, marker = line.partition(";")
        if not marker.strip():
            out.append(re.sub(r"\[[^\]]*\]|[()\s]", "", spec))
    return out


def child(code, limit, gpus=False):
    """The child's JSON; else {"error": its last words}. The kernel wheel picks its file by GPU."""
    try:
        env = dict(os.environ) if gpus else dict(os.environ, CUDA_VISIBLE_DEVICES="")
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, timeout=limit, check=False, env=env
        )
    except subprocess.TimeoutExpired:
        return {"error": "no end within %d s" % limit}
    try:
        return json.loads(done.stdout.decode("utf-8", "replace").strip().splitlines()[-1])
    except (ValueError, IndexError):
        words = done.stderr.decode("utf-8", "replace").strip()[-1500:]
        return {"error": words or "ended with %d" % done.returncode}


def folders(package):
    """Where the interpreter would take a top-level package from; nothing of it is imported.

    Not site-packages by its usual name: a wheel may lie on PYTHONPATH, be editable, or vendored.
    """
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return []
    return list(spec.submodule_search_locations or []) if spec else []


def first(package, *below):
    """The first existing file below a package, or None."""
    paths = [os.path.join(folder, *below) for folder in folders(package)]
    return next((p for p in paths if os.path.exists(p)), None)


def ptxas():
    """Versions of Triton's own ptxas binaries."""
    out = {}
    for name in ("ptxas", "ptxas-blackwell"):
        path = first("triton", "backends", "nvidia", "bin", name)
        if path:
            out[name] = asked(path)
    for name in ("TRITON_PTXAS_PATH", "TRITON_PTXAS_BLACKWELL_PATH"):
        if os.environ.get(name):
            out[name] = asked(os.environ[name])
    return out


def nvcc():
    path = first("nvidia", "cu13", "bin", "nvcc")
    return asked(path) if path else None


def asked(path):
    try:
        done = subprocess.run([path, "--version"], capture_output=True, timeout=10, check=False)
        return done.stdout.decode("utf-8", "replace")
    except (OSError, subprocess.TimeoutExpired) as error:
        return "error: %s" % error


def objects():
    """Device code and needed libraries of the kernel wheel's objects."""
    files, parent = [], {}
    for package, pattern in (("sgl_kernel", "**"), ("deep_gemm", "")):
        for folder in folders(package):
            for path in glob.glob(os.path.join(folder, pattern, "*.so"), recursive=True):
                files.append(path)
                parent[path] = os.path.dirname(folder)
    if not files or not ELF_SOURCE:
        return {}
    try:
        done = subprocess.run(
            [sys.executable, "-c", ELF_SOURCE, *files], capture_output=True, timeout=30, check=False
        )
        found = json.loads(done.stdout)
    except (subprocess.TimeoutExpired, ValueError) as error:
        return {"error": str(error)}
    return {os.path.relpath(path, parent[path]): value for path, value in found.items()}
