"""Made-up collections of healthy hosts, as raw as a collector's, for cases to break.

Values are ours: nothing here is a copied capture. `change` takes paths into the raw facts.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from typing import Any

from ddops.probe import Facts, parse_facts

DRIVER = "580.126.20"
KINDS: dict[str, dict[str, Any]] = {
    "pcie": {
        "name": "NVIDIA RTX PRO 6000 Blackwell Server Edition",
        "cc": "12.0",
        "mem": 97887,
        "device": "0x2BB510DE",
        "count": 8,
        "power": 600,
        "fabric": "N/A",
        "host_class": "pcie",
    },
    "rtx5090": {
        "name": "NVIDIA GeForce RTX 5090",
        "cc": "12.0",
        "mem": 32607,
        "device": "0x2B8510DE",
        "count": 1,
        "power": 575,
        "fabric": "N/A",
        "host_class": "pcie",
    },
    "gb10": {
        "name": "NVIDIA GB10",
        "cc": "12.1",
        "mem": 122000,
        "device": "0x2E1210DE",
        "count": 1,
        "power": 140,
        "fabric": "N/A",
        "host_class": "pcie",
    },
    "b300": {
        "name": "NVIDIA B300 SXM6 AC",
        "cc": "10.3",
        "mem": 275040,
        "device": "0x318210DE",
        "count": 8,
        "power": 1100,
        "fabric": "Completed",
        "host_class": "nvlink",
    },
    "b200": {
        "name": "NVIDIA B200",
        "cc": "10.0",
        "mem": 183359,
        "device": "0x290110DE",
        "count": 8,
        "power": 1000,
        "fabric": "Completed",
        "host_class": "nvlink",
    },
    "h200": {
        "name": "NVIDIA H200",
        "cc": "9.0",
        "mem": 143771,
        "device": "0x233510DE",
        "count": 8,
        "power": 700,
        "fabric": "Completed",
        "host_class": "nvlink",
    },
    "cpu": {"count": 0, "host_class": "cpu"},
}


def host(kind: str) -> dict[str, Any]:
    """A healthy host of that kind, with a complete engine environment of sglang 0.5.23."""
    k = KINDS[kind]
    rows = [_row(k, i) for i in range(k["count"])]
    return {
        "schema": "ddops.facts/2",
        "simulated": True,
        "at": 0,
        "collected_s": 1.0,
        "identity": {"hostname": kind, "container": False},
        "os": {"pretty": "A Linux 24.04", "arch": "x86_64", "glibc": "2.39", "kernel": "6.8.0"},
        "python": {"version": "3.11.9", "venv": True},
        "tools": {},
        "unread": {},
        "disk": {"path": "/opt/ddops", "exists": True, "writable": True, "free_bytes": 1 << 41},
        "gpus": rows,
        "driver": {"version": DRIVER, "open": True, "raw": _proc(DRIVER, True)},
        "commands": _commands(k, rows),
        "files": {
            "proc/driver/nvidia/version": _proc(DRIVER, True),
            "proc/modules": "nvidia_uvm 1 0\nnvidia 1 0\nmlx5_ib 1 0\nib_umad 1 0\n",
            "proc/cmdline": "BOOT_IMAGE=/vmlinuz iommu=pt pcie_aspm=off",
            "proc/version": "Linux version 6.8.0",
            "proc/sys/kernel/numa_balancing": "0",
            "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "performance",
            "sys/module/nvidia_uvm/parameters/uvm_disable_hmm": "Y",
        },
        "probes": _probes(k),
    }


def _proc(version: str, open_flavour: bool) -> str:
    kind = "UNIX Open Kernel Module for x86_64" if open_flavour else "UNIX x86_64 Kernel Module"
    return f"NVRM version: NVIDIA {kind}  {version}  Release Build\nGCC version:  gcc 13.2.0"


def _row(k: Mapping[str, Any], i: int) -> dict[str, Any]:
    return {
        "index": str(i),
        "name": k["name"],
        "uuid": f"GPU-00000000-0000-4000-8000-{i:012d}",
        "compute_cap": k["cc"],
        "memory.total": str(k["mem"]),
        "memory.used": "4",
        "driver_version": DRIVER,
        "pci.bus_id": _bus(i),
        "power.limit": f"{k['power']}.00",
        "mig.mode.current": None if k["cc"].startswith("12") else "Disabled",
        "vbios_version": "97.00.00.00.01",
        "pci.device_id": k["device"],
        "persistence_mode": "Enabled",
        "compute_mode": "Default",
        "clocks_event_reasons.active": "0x0000000000000001",
        "temperature.gpu": "31",
        "pcie.link.gen.current": "1",
        "pcie.link.gen.max": "5",
        "pcie.link.width.current": "16",
        "pcie.link.width.max": "16",
        "ecc.errors.uncorrected.volatile.total": "0",
        "fabric.state": None if k["fabric"] == "N/A" else k["fabric"],
        "fabric.status": None if k["fabric"] == "N/A" else "Success",
    }


def _bus(i: int) -> str:
    return f"00000000:{0x10 + 16 * i:02X}:00.0"


def smi_q(k: Mapping[str, Any], **more: str) -> str:
    """`nvidia-smi -q`, as much of it as is read. `more` replaces values by their key."""
    out = [f"Driver Version                            : {DRIVER}", ""]
    for i in range(k["count"]):
        values = {
            "recovery": "None",
            "bar1": f"{131072 if k['mem'] < 131072 else 524288} MiB",
            "state": k["fabric"],
            "status": "N/A" if k["fabric"] == "N/A" else "Success",
            "degraded": "N/A",
            "pending": "No",
            **more,
        }
        out += [
            f"GPU {_bus(i)}",
            f"    Product Name                          : {k['name']}",
            "    Display Mode                    : Requested functionality has been deprecated",
            f"    GPU Recovery Action                   : {values['recovery']}",
            "    BAR1 Memory Usage",
            f"        Total                             : {values['bar1']}",
            "    Remapped Rows",
            f"        Pending                           : {values['pending']}",
            "        Remapping Failure Occurred        : No",
            "    Fabric",
            f"        State                             : {values['state']}",
            f"        Status                            : {values['status']}",
            "        Health",
            f"            Degraded Bandwidth            : {values['degraded']}",
            "",
        ]
    return "\n".join(out)


def matrix(count: int, word: str) -> str:
    """A `topo` matrix with the terminal escapes of the real one."""
    head = (
        "\x1b[4m" + "\t".join(["", *(f"GPU{i}" for i in range(count)), "CPU Affinity"]) + "\x1b[0m"
    )
    rows = [
        "\t".join(
            [f"GPU{i}", *(" X " if i == j else word for j in range(count)), "0-31", "", "N/A"]
        )
        for i in range(count)
    ]
    return "\n".join([head, *rows, "", "Legend:"])


def _ran(out: str = "", rc: int | None = 0, err: str = "", why: str = "") -> dict[str, Any]:
    return {"rc": rc, "out": out, "err": err, "why": why}


def _commands(k: Mapping[str, Any], rows: list[dict[str, Any]]) -> dict[str, Any]:
    if not rows:
        return {}
    n, nvlink = len(rows), k["host_class"] == "nvlink"
    links = "\n".join(
        f"\t Link {j}: {'53.125' if k['cc'][:2] == '10' else '26.562'} GB/s" for j in range(18)
    )
    p2p = [" \t" + "\t".join(f"GPU{i}" for i in range(n))]
    p2p += [f" GPU{i}\t" + "\t".join("X" if i == j else "OK" for j in range(n)) for i in range(n)]
    bridges = [
        f"0000:{0x10 + 16 * i:02x}:00.0 PCI bridge [0604]: Switch [1000:c034]\n"
        "\tACSCtl:\tSrcValid- TransBlk- ReqRedir- CmpltRedir- UpstreamFwd-"
        for i in range(n)
    ]
    return {
        "smi": _ran(f"| NVIDIA-SMI {DRIVER}    Driver Version: {DRIVER}    CUDA Version: 13.0 |"),
        "smi_list": _ran(
            "\n".join(f"GPU {i}: {r['name']} (UUID: {r['uuid']})" for i, r in enumerate(rows))
        ),
        "smi_q": _ran(smi_q(k)),
        "topo": _ran(matrix(n, "NV18" if nvlink else "NODE")),
        "p2p": _ran("\n".join(p2p)),
        "nvlink": _ran(
            "\n".join(f"GPU {i}: {k['name']} (UUID: x)\n{links}" for i in range(n))
            if nvlink
            else ""
        ),
        "lspci": _ran("\n\n".join(bridges)),
        "dmesg": _ran("NVRM: loading NVIDIA UNIX Open Kernel Module"),
        "journal": _ran(),
        "modinfo": _ran(f"version:        {DRIVER}\nlicense:        Dual MIT/GPL"),
        "ldconfig": _ran("\tlibcuda.so.1 (libc6,x86-64) => /usr/lib/x86_64-linux-gnu/libcuda.so.1"),
        "gcc": _ran("13.2.0"),
        "ninja": _ran("1.11.1"),
        "virt": _ran("none", 1),
        "fm_unit": _ran(
            "LoadState=loaded\nActiveState=active\nResult=success"
            if nvlink
            else "LoadState=not-found\nActiveState=inactive"
        ),
        "fm_version": _ran(
            f"Fabric Manager version is : {DRIVER}" if nvlink else "",
            0 if nvlink else None,
            why="" if nvlink else "no nv-fabricmanager on PATH",
        ),
        "fm_log": _ran(),
        "nvlsm": _ran("NVLSM 2025.03", 0) if nvlink else _ran(rc=None, why="no nvlsm on PATH"),
        "imex_unit": _ran("LoadState=not-found\nActiveState=inactive"),
        "persistenced": _ran("active"),
        "holds": _ran("nvidia-open-580\n"),
        "ctk": _ran("NVIDIA Container Toolkit CLI version 1.18.0"),
    }


def _probes(k: Mapping[str, Any]) -> dict[str, Any]:
    n = k["count"]
    lib = "/usr/lib/x86_64-linux-gnu/"
    return {
        "cuda": {
            "init": 0,
            "driver": 13000,
            "count": n,
            "path": f"{lib}libcuda.so.{DRIVER}",
            "why": None,
        },
        "devices": {f"/dev/nvidia{x}": True for x in ("ctl", "-uvm", *range(n))},
        "environ": {},
        "home_nccl": None,
        "libs": {f"{lib}lib{x}.so.1": f"{lib}lib{x}.so.{DRIVER}" for x in ("cuda", "nvidia-ml")},
        "limits": {"nofile": 1048576, "memlock": None, "shm_bytes": 1 << 36},
        "pci": [
            {
                "bdf": f"0000:{0x11 + 16 * i:02x}:00.0",
                "device": "0x2bb5",
                "virtual": False,
                "numa": "0",
                "driver": "nvidia",
                "iommu": "identity",
                "above": [f"0000:{0x10 + 16 * i:02x}:00.0"],
                "aer": {
                    "correctable": "TOTAL_ERR_COR 0",
                    "fatal": "TOTAL_ERR_FATAL 0",
                    "nonfatal": None,
                },
            }
            for i in range(n)
        ],
        "infiniband": {"bridges": ["mlx5_0"], "umad": 4, "devices": []},
        "toolkits": [
            {
                "where": "/usr/local/cuda",
                "home": "/usr/local/cuda",
                "real": "/usr/local/cuda-13.0",
                "nvcc": True,
                "header": 13000,
                "curand": True,
                "version": "Cuda compilation tools, release 13.0, V13.0.88",
            }
        ],
        "caches": {
            "~/.cache/flashinfer": {
                "exists": True,
                "writable": True,
                "free_bytes": 1 << 40,
                "versions": ["0.7.2"],
            }
        },
        "uptime_s": 90000.0,
        "proved": {
            "results": {
                "p2p": {
                    "ok": True,
                    "equal": True,
                    "gb_s": 700.0 if k["host_class"] == "nvlink" else 52.0,
                },
                "nccl": {"ok": True, "ranks": {"2": "ok", str(n): "ok"}},
                "canary": {"ok": True},
                "nvcc": {"ok": True},
            }
        },
        "env": engine(),
    }


def engine() -> dict[str, Any]:
    """The engine environment of sglang 0.5.23 as its wheels are."""
    targets = ["sm_80", "sm_89", "sm_90", "sm_90a", "sm_100f", "sm_120a"]
    ops = {
        "targets": targets,
        "needed": ["libcudart.so.13", "libtorch.so", "libc.so.6"],
        "error": None,
    }
    return {
        "python": "3.11.9",
        "free_threaded": False,
        "prefix": "/opt/ddops/env/x",
        "python_h": True,
        "packages": {
            "sglang": "0.5.23",
            "torch": "2.14.1",
            "triton": "3.8.0",
            "sglang-kernel": "0.4.10",
            "flashinfer-python": "0.7.2",
            "sgl-deep-gemm": "0.2.3.post2",
            "nvidia-nccl-cu13": "2.30.7",
            "nvidia-cudnn-cu13": "9.24.0.43",
        },
        "requires": ["torch==2.14.1", "flashinfer-python==0.7.2", "sglang-kernel==0.4.10"],
        "torch": {
            "version": "2.14.1+cu130",
            "cuda": "13.0",
            "abi": True,
            "archs": ["sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"],
        },
        "kernel_import": {},
        "ptxas": {
            "ptxas": "Cuda compilation tools, release 12.9, V12.9.86",
            "ptxas-blackwell": "Cuda compilation tools, release 13.3, V13.3.33",
        },
        "nvcc": None,
        "objects": {
            "sgl_kernel/sm90/common_ops.abi3.so": ops,
            "sgl_kernel/sm100/common_ops.abi3.so": ops,
            "sgl_kernel/flashmla_ops.abi3.so": {**ops, "targets": ["sm_90a", "sm_100f", "sm_103a"]},
            "sgl_kernel/flash_ops.abi3.so": {**ops, "targets": ["sm_80", "sm_86", "sm_90a"]},
        },
    }


def changed(raw: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """A copy with values replaced: keys are paths with `|`, `*` stands for every member.

    The value `"__absent__"` takes a member away, `"__drop__"` a place of a
    list, `"__null__"` puts None there.
    """
    out: dict[str, Any] = copy.deepcopy(dict(raw))
    for path, value in changes.items():
        _put(out, path.split("|"), value)
    return out


def _put(node: Any, path: list[str], value: Any) -> None:
    head, rest = path[0], path[1:]
    if head == "*":
        keys: list[Any] = list(range(len(node))) if isinstance(node, list) else list(node)
    else:
        keys = [int(head) if isinstance(node, list) else head]
    for key in keys:
        if rest:
            if isinstance(node, dict):
                node.setdefault(key, {})
            _put(node[key], rest, value)
        elif value == "__drop__":
            del node[key]
        elif value == "__absent__":
            node.pop(key, None)
        else:
            node[key] = None if value == "__null__" else copy.deepcopy(value)


def facts(raw: Mapping[str, Any]) -> Facts:
    return parse_facts(json.dumps(raw))
