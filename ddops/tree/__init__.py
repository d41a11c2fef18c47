"""Source trees and patch series: what is applied where, and whether it is what runs."""

from ddops.tree.series import Patch, Series, parse_patch, read_series, series_digest

__all__ = ["Patch", "Series", "parse_patch", "read_series", "series_digest"]
