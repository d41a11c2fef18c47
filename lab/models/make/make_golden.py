"""Write golden.json: greedy answers of the tiny target from Hugging Face, in float32.

    python lab/models/make/make_golden.py --target lab/models/tiny-qwen3 \\
        --out lab/models/golden.json

No engine under test is involved. A prompt is kept only if no step of its answer is a near
tie, so that another correct float32 implementation has no excuse for another token. Of those,
the six with the widest gap are written.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from pathlib import Path
from typing import Any

import tokenizers
import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

LENGTH = 48
WANTED = 6
CANDIDATES = {
    "decode-object": "def decode(text, idx=0):\n    obj, end = scan_once(text, idx)\n    if end",
    "encoder-class": "class JSONEncoder(object):\n    def __init__(self, *, skipkeys=False,",
    "heap-push": "def push(heap, item):\n    heap.append(item)\n    _siftdown(heap, 0,",
    "queue-get": "    def get(self, block=True, timeout=None):\n        with self.not_empty:\n",
    "bisect-loop": "def find(a, x):\n    lo = 0\n    hi = len(a)\n    while lo < hi:\n        mid",
    "dump-call": "import json\n\ndef save(obj, fp):\n    for chunk in json.",
    "scan-string": "def py_scanstring(s, end, strict=True):\n    chunks = []\n",
    "abstract": "class Shape(metaclass=ABCMeta):\n    @abstractmethod\n    def",
    "main-guard": "def main():\n    parser = argparse.ArgumentParser(prog=prog,",
    "raise-error": "        if value is None:\n            raise TypeError(",
    "merge": "def merge(*iterables, key=None, reverse=False):\n    h = []\n",
    "float-repr": "def floatstr(o, allow_nan=allow_nan):\n    if o != o:\n        text = 'NaN'\n",
    "try-next": "    try:\n        nextchar = s[end]\n    except IndexError:\n",
    "chat": "<|im_start|>user\nclass Queue:<|im_end|>\n<|im_start|>assistant\n",
}


@torch.no_grad()
def answer(model: PreTrainedModel, ids: list[int]) -> tuple[list[int], float]:
    """The greedy answer and the smallest gap between best and second-best logit on its way."""
    prompt = torch.tensor([ids])
    out = model.generate(
        input_ids=prompt,
        attention_mask=torch.ones_like(prompt),
        do_sample=False,
        max_new_tokens=LENGTH,
        output_logits=True,
        return_dict_in_generate=True,
    )
    gaps = []
    for logits in out.logits:
        best, second = logits[0].float().topk(2).values.tolist()
        gaps.append(best - second)
    return out.sequences[0, len(ids) :].tolist(), min(gaps)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--min-gap", type=float, default=5e-3)
    parser.add_argument("--min-distinct", type=int, default=12, help="distinct tokens per answer")
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)

    tokenizer = AutoTokenizer.from_pretrained(args.target)
    model = AutoModelForCausalLM.from_pretrained(args.target, dtype=torch.float32).eval()
    model.generation_config.eos_token_id = None  # the end token does not end an answer
    prompts: list[dict[str, Any]] = []
    for name, text in CANDIDATES.items():
        ids = tokenizer(text).input_ids
        output, gap = answer(model, ids)
        keep = gap >= args.min_gap and len(set(output)) >= args.min_distinct
        print(f"{name}: {gap=:.4f} distinct={len(set(output))} {'kept' if keep else 'left'}")
        print("   ", repr(tokenizer.decode(output)))
        if keep:
            row = {"id": name, "text": text, "input_ids": ids, "output_ids": output}
            prompts.append(row | {"min_gap": round(gap, 6)})
    if len(prompts) < WANTED:
        raise SystemExit(f"only {len(prompts)} of {WANTED} prompts are fit; add candidates")
    floor = sorted((p["min_gap"] for p in prompts), reverse=True)[WANTED - 1]
    prompts = [p for p in prompts if p["min_gap"] >= floor]  # the widest gaps
    weights = (args.target / "model.safetensors").read_bytes()
    golden = {
        "schema": "ddops.golden/1",
        "reference": {
            "made_by": "lab/models/make/make_golden.py: transformers generate, greedy, CPU",
            "transformers": transformers.__version__,
            "tokenizers": tokenizers.__version__,
            "torch": torch.__version__,
            "dtype": "float32",
            "model_sha256": hashlib.sha256(weights).hexdigest(),
        },
        "prompts": prompts[:WANTED],
    }
    args.out.write_text(json.dumps(golden, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
