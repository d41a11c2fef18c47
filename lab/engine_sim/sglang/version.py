"""The release whose command line and answers the stand-in imitates."""

__version__ = "0.5.23"
