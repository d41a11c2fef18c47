"""The findings report: what is known, from which runs, and what fell.

    findings = collect(ledger, service="k26")
    document = compose(findings, draw=True)
    html = render_html(document, css)

A report reads valid runs for numbers, and everything else to say why it does not count.
"""

from ddops.report.collect import Findings, collect
from ddops.report.compose import compose
from ddops.report.html import render_html
from ddops.report.markdown import render_markdown

__all__ = ["Findings", "collect", "compose", "render_html", "render_markdown"]
