"""Which configuration to run, from what the ledger holds, with its evidence.

    answer = recommend(ledger, service="k26", host_class="pcie")

Reads valid, gated runs alone (the view `valid_run`), so a retraction changes the answer at once.
"""

from ddops.recommend.answer import Answer, recommend

__all__ = ["Answer", "recommend"]
