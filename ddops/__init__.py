"""ddops: prove, deploy, trace and withdraw."""

__version__ = "0.1.0"
