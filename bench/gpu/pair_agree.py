"""The library's own forward pass over what a server answered: is it the same model?

    python bench/gpu/pair_agree.py TARGET ANSWERS.json      # one line of JSON

A wrong rotation, scale or weight in the server's model leaves speculation lossless and makes the
drafter useless. Here it shows as tokens that the library would not have chosen. The library
computes in float32, so what is left of the gaps is the server's rounding.
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM


@torch.no_grad()
def main(target: Path, answers: Path) -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32).to(device).eval()
    same = total = 0
    gaps: list[float] = []
    server: list[float] = []
    for row in json.loads(answers.read_text()):
        ids = torch.tensor([row["prompt"] + row["said"]], device=device)
        said = ids[0, len(row["prompt"]) :]
        logits = model(input_ids=ids, use_cache=False).logits[0, len(row["prompt"]) - 1 : -1]
        law = logits.float().log_softmax(-1)
        own = law.gather(1, said.unsqueeze(1)).squeeze(1)
        theirs = torch.tensor(row["logprobs"], device=device)
        same += int((law.argmax(-1) == said).sum())
        total += len(said)
        gaps += (own - theirs).abs().tolist()
        server += theirs.tolist()
    print(json.dumps({
        "tokens": total, "also_the_librarys_choice": round(same / total, 4),
        "logprob_gap_mean": round(statistics.mean(gaps), 5), "logprob_gap_max": round(max(gaps), 4),
        "server_loss": round(-statistics.mean(server), 4),
    }))  # fmt: skip


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    main(Path(sys.argv[1]), Path(sys.argv[2]))
