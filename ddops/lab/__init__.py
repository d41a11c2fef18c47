"""Real hosts on loopback to try and test on: sshd, a supervisor, no root, no GPU."""

from ddops.lab.spec import ENGINES, GPU_KINDS, LabHost, LabPaths, LabSpec, LabState

__all__ = ["ENGINES", "GPU_KINDS", "LabHost", "LabPaths", "LabSpec", "LabState"]
