"""What the collector asks of the host besides commands and files; cuInit in a child of its own.

python3 - ENGINE_DIR < collect_host.py        prints one JSON object
"""

import glob
import json
import os
import re
import resource
import shutil
import stat
import subprocess
import sys

#: Variables that decide how CUDA, NCCL and compilers behave. Never a name that could hold a secret.
VARIABLES = re.compile(
    r"^(NCCL_|CUDA_|LD_|TRITON_|FLASHINFER_|TVM_FFI_|NVCC_|NVIDIA_(VISIBLE|DRIVER|REQUIRE|DISABLE)"
    r"|SGLANG_|TORCH_CUDA_|CXX$|CC$|CUTE_DSL_|CONDA_PREFIX$)"
)
SECRET = re.compile(r"KEY|TOKEN|SECRET|PASS|AUTH", re.I)
WEIGHTS = (".safetensors", ".bin", ".gguf", ".pt")
#: What decides the size of a KV cache, by Hugging Face's names.
SIZES = (
    "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim", "hidden_size",
    "kv_lora_rank", "qk_rope_head_dim", "max_position_embeddings",
)  # fmt: skip
CUDA_CHILD = """
import ctypes, json
out = {"init": None, "driver": None, "count": None, "path": None, "why": None}
try:
    lib = ctypes.CDLL("libcuda.so.1")
    with open("/proc/self/maps") as f:
        out["path"] = next((l.split()[-1] for l in f if "libcuda.so" in l), None)
    n = ctypes.c_int()
    out["init"] = lib.cuInit(0)
    if lib.cuDriverGetVersion(ctypes.byref(n)) == 0:
        out["driver"] = n.value
    if out["init"] == 0 and lib.cuDeviceGetCount(ctypes.byref(n)) == 0:
        out["count"] = n.value
except OSError as error:
    out["why"] = str(error)
print(json.dumps(out))
"""


def main(argv):
    json.dump(
        {
            "cuda": cuda(),
            "devices": devices(),
            "environ": {
                k: v[:500]
                for k, v in os.environ.items()
                if VARIABLES.match(k) and not SECRET.search(k)
            },
            "home_nccl": read(os.path.expanduser("~/.nccl.conf")),
            "libs": libs(),
            "limits": limits(),
            "pci": pci(),
            "infiniband": infiniband(),
            "toolkits": toolkits(),
            "caches": caches(),
            "cdi": cdi(),
            "uptime_s": uptime(),
            "proved": proved(argv[0] if argv else "/opt/ddops"),
            "models": models(argv[0] if argv else "/opt/ddops"),
        },
        sys.stdout,
    )
    return 0


def read(path, limit=65536):
    try:
        with open(path, "rb") as f:
            return f.read(limit).decode("utf-8", "replace").strip()
    except OSError:
        return None


def cuda():
    """cuInit can hang for ever on a broken fabric."""
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", CUDA_CHILD],
            capture_output=True,
            timeout=12,
            check=False,
        )
        return json.loads(done.stdout)
    except subprocess.TimeoutExpired:
        return {"init": None, "driver": None, "count": None, "path": None, "why": "hangs"}
    except ValueError:
        return {"init": None, "driver": None, "count": None, "path": None,
                "why": "the child died with %d" % done.returncode}  # fmt: skip


def models(engine_dir):
    """Weights below the engine's folder: bytes on disk, and what sizes their KV cache."""
    out = {}
    for folder in sorted(glob.glob(os.path.join(engine_dir, "models", "*")))[:64]:
        files = [f for end in WEIGHTS for f in glob.glob(os.path.join(folder, "*" + end))]
        try:
            size = sum(os.stat(f).st_size for f in files)
        except OSError:
            size = None  # one is a dangling link, or just being fetched
        try:
            config = json.loads(read(os.path.join(folder, "config.json"), 1 << 20) or "{}")
            config = dict(config, **(config.get("text_config") or {}))
        except (ValueError, TypeError, AttributeError):
            config = {}
        out[folder] = {
            "bytes": size if files else None,
            "config": {k: config[k] for k in SIZES if isinstance(config.get(k), int)},
        }
    return out


def devices():
    """Device nodes of NVIDIA: whether this user can open them."""
    out = {}
    for path in glob.glob("/dev/nvidia*"):
        try:
            if stat.S_ISCHR(os.stat(path).st_mode):
                out[path] = os.access(path, os.R_OK | os.W_OK)
        except OSError:
            out[path] = False
    return out


def libs():
    """Files of the driver's user-space libraries: loader path to the file it really is."""
    patterns = ["/usr/lib*/libcuda.so.1", "/usr/lib/*/libcuda.so.1", "/usr/lib*/libnvidia-ml.so.1",
                "/usr/lib/*/libnvidia-ml.so.1", "/usr/local/cuda*/compat/libcuda.so.1",
                "/usr/lib/wsl/lib/libcuda.so.1"]  # fmt: skip
    patterns += [
        os.path.join(d, "libcuda.so.1")
        for d in os.environ.get("LD_LIBRARY_PATH", "").split(":")
        if d
    ]
    return {p: os.path.realpath(p) for pattern in patterns for p in glob.glob(pattern)}


def limits():
    out = {}
    for name in ("NOFILE", "MEMLOCK"):
        soft = resource.getrlimit(getattr(resource, "RLIMIT_" + name))[0]
        out[name.lower()] = None if soft == resource.RLIM_INFINITY else soft
    try:
        shm = os.statvfs("/dev/shm")  # noqa: S108
        out["shm_bytes"] = shm.f_blocks * shm.f_frsize
    except OSError:
        out["shm_bytes"] = None
    return out


def pci():
    """NVIDIA display functions from sysfs, with the bridges above each; needs no root."""
    out = []
    for path in sorted(glob.glob("/sys/bus/pci/devices/*")):
        if read(path + "/vendor") != "0x10de" or (read(path + "/class") or "")[:6] not in (
            "0x0300", "0x0302",
        ):  # fmt: skip
            continue
        real = os.path.realpath(path)
        group = os.path.realpath(path + "/iommu_group") + "/type"
        out.append(
            {
                "bdf": os.path.basename(path),
                "device": read(path + "/device"),
                "virtual": os.path.exists(path + "/physfn"),
                "numa": read(path + "/numa_node"),
                "driver": os.path.basename(os.path.realpath(path + "/driver")),
                "iommu": read(group),
                "above": [p for p in real.split("/") if re.match(r"^[0-9a-f]+:..:..\..$", p)][:-1],
                "aer": {
                    k: read(path + "/aer_dev_" + k) for k in ("correctable", "fatal", "nonfatal")
                },
            }
        )
    return out


def infiniband():
    """Fabric devices of NVLink5 boards: `SW_MNG` in the vital product data marks the bridge."""
    bridges = []
    for path in glob.glob("/sys/class/infiniband/*/device/vpd"):
        if "SW_MNG" in (read(path, 1 << 16) or ""):
            bridges.append(path.split("/")[4])
    return {"bridges": bridges, "umad": len(glob.glob("/dev/infiniband/umad*")),
            "devices": os.listdir("/sys/class/infiniband") if os.path.isdir("/sys/class/infiniband")
            else []}  # fmt: skip


def toolkits():
    """Every nvcc there is, in the order in which JIT compilers look for it."""
    env = os.environ
    order = [("CUDA_HOME", env.get("CUDA_HOME")), ("CUDA_PATH", env.get("CUDA_PATH"))]
    which = shutil.which("nvcc")
    order.append(
        ("PATH", os.path.dirname(os.path.dirname(os.path.realpath(which))) if which else None)
    )
    order.append(("/usr/local/cuda", "/usr/local/cuda"))
    order += [("disk", p) for p in sorted(glob.glob("/usr/local/cuda-*"))]
    return [toolkit(where, home) for where, home in order if home]


def toolkit(where, home):
    nvcc = os.path.join(home, "bin", "nvcc")
    out = {"where": where, "home": home, "real": os.path.realpath(home),
           "nvcc": os.access(nvcc, os.X_OK), "version": None, "header": None,
           "curand": False}  # fmt: skip
    if out["nvcc"]:
        try:
            done = subprocess.run([nvcc, "--version"], capture_output=True, timeout=10, check=False)
            out["version"] = done.stdout.decode("utf-8", "replace")
        except (OSError, subprocess.TimeoutExpired) as error:
            out["version"] = str(error)
    for base in (home, os.path.join(home, "targets", "x86_64-linux")):
        text = read(os.path.join(base, "include", "cuda_runtime_api.h"), 1 << 20) or ""
        found = re.search(r"#define\s+CUDART_VERSION\s+(\d+)", text)
        if found:
            out["header"] = int(found.group(1))
        out["curand"] = out["curand"] or os.path.exists(os.path.join(base, "include", "curand.h"))
    return out


def caches():
    """Folders that JIT compilers fill: free space and whether this user owns them."""
    out = {}
    for name in ("~/.cache/flashinfer", "~/.triton", "~/.cache/tvm-ffi"):
        path = os.path.expanduser(name)
        probe = path
        while not os.path.isdir(probe):
            probe = os.path.dirname(probe)
        free = os.statvfs(probe)
        out[name] = {
            "exists": os.path.isdir(path),
            "writable": os.access(probe, os.W_OK),
            "free_bytes": free.f_bavail * free.f_frsize,
            "versions": sorted(os.listdir(path))[:40] if os.path.isdir(path) else [],
        }
    return out


def cdi():
    """Driver versions that the container interface's files name, by file."""
    out = {}
    for path in glob.glob("/etc/cdi/*") + glob.glob("/var/run/cdi/*"):
        text = read(path, 1 << 20) or ""
        found = re.search(r"libcuda\.so\.(\d{3,4}\.\d+(?:\.\d+)?)", text)
        if found:
            out[path] = found.group(1)
    return out


def uptime():
    text = read("/proc/uptime")
    return float(text.split()[0]) if text else None


def proved(engine_dir):
    """What `--prove` found here last, or None."""
    try:
        return json.loads(read(os.path.join(engine_dir, ".ddops", "prove.json"), 1 << 20) or "null")
    except ValueError:
        return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
