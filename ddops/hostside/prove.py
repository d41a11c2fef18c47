#!/usr/bin/env python3
"""Proves the chain by running it: compiles and launches small kernels, copies between GPUs.

    python3 prove.py [--json] [--python ENGINE_PYTHON] [--only nvcc,p2p] [--limit SECONDS]
                     [--digest TEXT] [--keep FILE]

Each proof runs in a child with a time limit, because each of them is known to hang on some host.
`--python` is the engine environment's interpreter (default: the newest below `--engine-dir`, else
this one). `--keep` stores the results for the collector; `--digest` names the facts they hold for.
A proof that could not be tried says `skipped` and why; it is never `ok`.
"""

import argparse
import glob
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

SCHEMA = "ddops.prove/1"

NVCC_SOURCE = r"""
#include <cstdio>
#include <cmath>
#include <cuda_runtime.h>
__global__ void twice(const float *in, float *out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = 2.0f * in[i] + 0.0f * rsqrtf(1.0f + in[i]);
}
int main() {
  int gpus = 0, bad = 0;
  if (cudaGetDeviceCount(&gpus) || gpus == 0) { printf("no device\n"); return 3; }
  for (int g = 0; g < gpus; g++) {
    cudaSetDevice(g);
    const int n = 4096; float *a, *b;
    if (cudaMallocManaged(&a, n * 4) || cudaMallocManaged(&b, n * 4)) {
      printf("gpu %d: no memory\n", g); return 4; }
    for (int i = 0; i < n; i++) a[i] = (float)i;
    twice<<<n / 256, 256>>>(a, b, n);
    cudaError_t e = cudaDeviceSynchronize();
    if (e != cudaSuccess) { printf("gpu %d: %d %s\n", g, (int)e, cudaGetErrorString(e)); return 5; }
    for (int i = 0; i < n; i++) bad += b[i] != 2.0f * i;
  }
  printf("%s %d gpus\n", bad ? "wrong" : "right", gpus);
  return bad ? 6 : 0;
}
"""

TRITON_SOURCE = r"""
import json, torch, triton, triton.language as tl

@triton.jit
def twice(a, b, n, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(b + at, tl.load(a + at, mask=at < n) * 2, mask=at < n)

out = {"triton": triton.__version__, "equal": True}
try:
    from triton.backends.nvidia import compiler
    major, minor = torch.cuda.get_device_capability(0)
    out["ptxas"] = str(getattr(compiler.get_ptxas(major * 10 + minor), "path", ""))
except Exception as error:
    out["ptxas"] = "not told: %s" % type(error).__name__
for g in range(torch.cuda.device_count()):
    with torch.cuda.device(g):
        a = torch.arange(5000, device="cuda", dtype=torch.float32)
        b = torch.empty_like(a)
        twice[(triton.cdiv(a.numel(), 1024),)](a, b, a.numel(), B=1024)
        torch.cuda.synchronize()
        out["equal"] = out["equal"] and bool(torch.equal(b, a * 2))
out["ok"] = out["equal"]
print(json.dumps(out))
"""

KERNEL_SOURCE = r"""
import json, torch, sgl_kernel
out = {"ok": True, "op": "silu_and_mul"}
for g in range(torch.cuda.device_count()):
    with torch.cuda.device(g):
        x = torch.randn(16, 512, device="cuda", dtype=torch.bfloat16)
        y = torch.empty(16, 256, device="cuda", dtype=torch.bfloat16)
        got = sgl_kernel.silu_and_mul(x, y)
        got = y if got is None else got
        torch.cuda.synchronize()
        want = torch.nn.functional.silu(x[:, :256].float()) * x[:, 256:].float()
        if not torch.allclose(got.float(), want, atol=0.05, rtol=0.05):
            out = {"ok": False, "op": "silu_and_mul", "error": "wrong values on GPU %d" % g}
print(json.dumps(out))
"""

P2P_SOURCE = r"""
import ctypes, json, sys, time
try:
    cu = ctypes.CDLL("libcuda.so.1")
except OSError as error:
    print(json.dumps({"ok": False, "skipped": str(error)}))
    sys.exit(0)
SIZE, PTR = 64 << 20, ctypes.c_uint64

def ok(rc, what):
    if rc:
        print(json.dumps({"ok": False, "error": "%s: %d" % (what, rc)}))
        sys.exit(0)

ok(cu.cuInit(0), "cuInit")
n = ctypes.c_int()
ok(cu.cuDeviceGetCount(ctypes.byref(n)), "cuDeviceGetCount")
if n.value < 2:
    print(json.dumps({"ok": False, "skipped": "fewer than two GPUs"}))
    sys.exit(0)
ctx, mem = [], []
for g in range(n.value):
    c, m = ctypes.c_void_p(), PTR()
    ok(cu.cuDevicePrimaryCtxRetain(ctypes.byref(c), g), "cuDevicePrimaryCtxRetain")
    ok(cu.cuCtxSetCurrent(c), "cuCtxSetCurrent")
    ok(cu.cuMemAlloc_v2(ctypes.byref(m), ctypes.c_size_t(SIZE)), "cuMemAlloc")
    ctx.append(c)
    mem.append(m)
slow, blocked = None, []
for a in range(n.value):
    for b in range(n.value):
        if a == b:
            continue
        can = ctypes.c_int()
        ok(cu.cuDeviceCanAccessPeer(ctypes.byref(can), a, b), "cuDeviceCanAccessPeer")
        if not can.value:
            blocked.append([a, b])
            continue
        word = 0xA5000000 + a * 256 + b
        ok(cu.cuCtxSetCurrent(ctx[b]), "cuCtxSetCurrent")
        ok(cu.cuMemsetD32_v2(mem[b], 0, ctypes.c_size_t(SIZE // 4)), "cuMemsetD32")
        ok(cu.cuCtxSynchronize(), "cuCtxSynchronize")
        ok(cu.cuCtxSetCurrent(ctx[a]), "cuCtxSetCurrent")
        rc = cu.cuCtxEnablePeerAccess(ctx[b], 0)
        if rc not in (0, 704):
            ok(rc, "cuCtxEnablePeerAccess %d to %d" % (a, b))
        ok(cu.cuMemsetD32_v2(mem[a], word, ctypes.c_size_t(SIZE // 4)), "cuMemsetD32")
        ok(cu.cuCtxSynchronize(), "cuCtxSynchronize")
        best = None
        for _ in range(5):
            began = time.perf_counter()
            rc = cu.cuMemcpyPeer(mem[b], ctx[b], mem[a], ctx[a], ctypes.c_size_t(SIZE))
            ok(rc, "cuMemcpyPeer %d to %d" % (a, b))
            ok(cu.cuCtxSynchronize(), "cuCtxSynchronize %d to %d" % (a, b))
            took = time.perf_counter() - began
            best = took if best is None else min(best, took)
        host = (ctypes.c_uint32 * (SIZE // 4))()
        ok(cu.cuCtxSetCurrent(ctx[b]), "cuCtxSetCurrent")
        ok(cu.cuMemcpyDtoH_v2(host, mem[b], ctypes.c_size_t(SIZE)), "cuMemcpyDtoH")
        want = word.to_bytes(4, "little") * (SIZE // 4)
        if bytes(host) != want:
            print(json.dumps({"ok": False, "equal": False, "pair": [a, b]}))
            sys.exit(0)
        speed = SIZE / best / 1e9
        slow = speed if slow is None else min(slow, speed)
if slow is None:
    print(json.dumps({"ok": False, "skipped": "the driver allows no peer access between the GPUs"}))
else:
    print(json.dumps({"ok": not blocked, "equal": True, "gb_s": round(slow, 2), "blocked": blocked,
                      "error": "no peer access for some pairs" if blocked else None}))
"""

NCCL_SOURCE = r"""
import os, sys, torch, torch.distributed as dist
rank, world, path = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
torch.cuda.set_device(rank)
dist.init_process_group("nccl", init_method="file://" + path, rank=rank, world_size=world)
for size in (1024, 1 << 22):
    x = torch.full((size,), float(rank + 1), device="cuda")
    dist.all_reduce(x)
    torch.cuda.synchronize()
    want = world * (world + 1) / 2
    if not bool((x == want).all()):
        sys.exit("wrong sum")
dist.destroy_process_group()
"""

LINK_SOURCE = r"""
import ctypes, time
cu = ctypes.CDLL("libcuda.so.1")
n, size = ctypes.c_int(), 256 << 20
assert cu.cuInit(0) == 0 and cu.cuDeviceGetCount(ctypes.byref(n)) == 0
host = (ctypes.c_char * size)()
work = []
for g in range(n.value):
    c, m = ctypes.c_void_p(), ctypes.c_uint64()
    assert cu.cuDevicePrimaryCtxRetain(ctypes.byref(c), g) == 0
    assert cu.cuCtxSetCurrent(c) == 0
    assert cu.cuMemAlloc_v2(ctypes.byref(m), ctypes.c_size_t(size)) == 0
    work.append((c, m))
end = time.monotonic() + 6
print("ready", flush=True)
while time.monotonic() < end:
    for c, m in work:
        assert cu.cuCtxSetCurrent(c) == 0
        assert cu.cuMemcpyHtoD_v2(m, host, ctypes.c_size_t(size)) == 0
"""


def main(argv):
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--python")
    parser.add_argument("--engine-dir", default="/opt/ddops")
    parser.add_argument("--only", default="nvcc,triton,kernel,p2p,link,nccl")
    parser.add_argument("--limit", type=float, default=120.0)
    parser.add_argument("--digest", default="")
    parser.add_argument("--keep")
    args = parser.parse_args(argv)
    python = args.python or newest_python(args.engine_dir) or sys.executable
    began, results = time.monotonic(), {}
    with tempfile.TemporaryDirectory(prefix="ddops-prove-") as folder:
        prover = Prover(folder, python, args.limit)
        for name in args.only.split(","):
            at = time.monotonic()
            results[name] = getattr(prover, "prove_" + name)()
            results[name]["s"] = round(time.monotonic() - at, 2)
    out = {"schema": SCHEMA, "digest": args.digest, "at": time.time(), "python": python,
           "results": results, "s": round(time.monotonic() - began, 2)}  # fmt: skip
    if args.keep:
        keep(args.keep, out)
    if args.json:
        json.dump(out, sys.stdout)
    else:
        for name, one in results.items():
            word = "ok" if one.get("ok") else "skipped" if one.get("skipped") else "FAILED"
            print("%-8s %-8s %s" % (name, word, one.get("error") or one.get("skipped") or ""))
    return 0 if all(r.get("ok") or r.get("skipped") for r in results.values()) else 1


def newest_python(engine_dir):
    found = glob.glob(os.path.join(engine_dir, "env", "*", "bin", "python"))
    return max(found, key=lambda p: os.lstat(p).st_mtime) if found else None


def keep(path, value):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path + ".new", "w", encoding="utf-8") as f:
        json.dump(value, f)
    os.replace(path + ".new", path)


class Prover:
    def __init__(self, folder, python, limit):
        self.folder = folder
        self.python = python
        self.limit = limit

    def child(self, argv, limit=None, env=None):
        """rc, stdout and stderr; rc None when it did not end in time. Its whole group is ended."""
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            cwd=self.folder, env=env, start_new_session=True,
        )  # fmt: skip
        try:
            out, err = process.communicate(timeout=limit or self.limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            try:
                process.communicate(timeout=5)
            except subprocess.TimeoutExpired:
                return None, "", "does not even end when killed"
            return None, "", "no end in time"
        return process.returncode, out.decode("utf-8", "replace"), err.decode("utf-8", "replace")

    def script(self, name, text, *args):
        """A Python script's JSON answer; a hang or a crash as a failed proof."""
        path = os.path.join(self.folder, name)
        with open(path, "w", encoding="utf-8") as f:
            f.write(text)
        rc, out, err = self.child([self.python, path, *args])
        if rc is None:
            return {"ok": False, "timed_out": True, "error": err}
        try:
            return json.loads(out.strip().splitlines()[-1])
        except (ValueError, IndexError):
            words = (err.strip() or out.strip() or "ended with %s" % rc)[-800:]
            missing = re.search(r"No module named '(torch|triton|sgl_kernel)'", words)
            if missing:
                return {"ok": False, "skipped": "%s is not installed here" % missing.group(1)}
            return {"ok": False, "error": words}

    def prove_nvcc(self):
        nvcc = find_nvcc()
        if nvcc is None:
            return {"ok": False, "skipped": "no nvcc that a JIT compiler would find"}
        caps = capabilities()
        if not caps:
            return {"ok": False, "skipped": "nvidia-smi names no compute capability"}
        source, binary = os.path.join(self.folder, "t.cu"), os.path.join(self.folder, "t")
        with open(source, "w", encoding="utf-8") as f:
            f.write(NVCC_SOURCE)
        codes = []
        for cap in caps:
            number = cap.replace(".", "")
            codes += ["-gencode", "arch=compute_%s,code=sm_%s" % (number, number)]
        rc, out, err = self.child([nvcc, *codes, "-o", binary, source])
        if rc != 0:
            return {
                "ok": False,
                "error": (err or out)[-800:],
                "timed_out": rc is None,
                "at": "compile",
            }
        rc, out, err = self.child([binary], 60)
        good = rc == 0 and out.startswith("right")
        return {"ok": good, "nvcc": nvcc, "timed_out": rc is None,
                "error": None if good else (out + err)[-400:], "at": "launch"}  # fmt: skip

    def prove_triton(self):
        return self.script("t_triton.py", TRITON_SOURCE)

    def prove_kernel(self):
        return self.script("t_kernel.py", KERNEL_SOURCE)

    def prove_p2p(self):
        return self.script("t_p2p.py", P2P_SOURCE)

    def prove_link(self):
        """PCIe generation of every GPU while data moves: at idle it says nothing."""
        path = os.path.join(self.folder, "t_link.py")
        with open(path, "w", encoding="utf-8") as f:
            f.write(LINK_SOURCE)
        load = subprocess.Popen(
            [sys.executable, path], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        best: dict[int, int] = {}
        try:
            for _ in range(6):
                time.sleep(0.9)
                for i, gen in enumerate(asked("pcie.link.gen.current")):
                    if gen.isdigit():
                        best[i] = max(best.get(i, 0), int(gen))
        finally:
            load.kill()
            load.wait()
        if not best:
            return {"ok": False, "skipped": "nvidia-smi reports no PCIe generation"}
        most = [int(g) if g.isdigit() else 0 for g in asked("pcie.link.gen.max")]
        gens = [best[i] for i in sorted(best)]
        return {"ok": all(best[i] >= m for i, m in enumerate(most) if i in best), "gens": gens}

    def prove_nccl(self):
        """At two ranks and at all: NCCL takes another path for two."""
        count = len(asked("index"))
        if count < 2:
            return {"ok": False, "skipped": "fewer than two GPUs"}
        rc, _, err = self.child([self.python, "-c", "import torch.distributed"], 60)
        if rc != 0:
            return {"ok": False, "skipped": "torch is not usable: %s" % err[-200:]}
        path = os.path.join(self.folder, "t_nccl.py")
        with open(path, "w", encoding="utf-8") as f:
            f.write(NCCL_SOURCE)
        ranks, words = {}, []
        for world in sorted({2, count}):
            ranks[str(world)], said = self.ranks(path, world)
            words += said
        good = all(v == "ok" for v in ranks.values())
        return {"ok": good, "ranks": ranks, "error": None if good else " ".join(words)[-800:]}

    def ranks(self, path, world):
        meet = os.path.join(self.folder, "meet-%d" % world)
        running = [
            subprocess.Popen(
                [self.python, path, str(rank), str(world), meet], stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE, cwd=self.folder, start_new_session=True,
            )
            for rank in range(world)
        ]  # fmt: skip
        end, words, word = time.monotonic() + self.limit, [], "ok"
        for process in running:
            try:
                _, err = process.communicate(timeout=max(end - time.monotonic(), 0.1))
                if process.returncode:
                    word = "fails" if word == "ok" else word
                    words.append(err.decode("utf-8", "replace").strip()[-300:])
            except subprocess.TimeoutExpired:
                word = "hangs"
        for process in running:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(10)
        return word, words


def find_nvcc():
    for home in (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH")):
        if home and os.access(os.path.join(home, "bin", "nvcc"), os.X_OK):
            return os.path.join(home, "bin", "nvcc")
    found = shutil.which("nvcc")
    usual = "/usr/local/cuda/bin/nvcc"
    return found or (usual if os.access(usual, os.X_OK) else None)


def asked(field):
    """One value per GPU; empty when nvidia-smi does not answer."""
    try:
        done = subprocess.run(
            ["nvidia-smi", "--query-gpu=" + field, "--format=csv,noheader,nounits"],
            capture_output=True, timeout=20, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return []
    if done.returncode:
        return []
    return [li.strip() for li in done.stdout.decode("utf-8", "replace").splitlines() if li.strip()]


def capabilities():
    return sorted({c for c in asked("compute_cap") if re.match(r"^\d+\.\d$", c)})


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
