"""A toy that only states that differ can learn: two masks that must hold the same one of four letters, without context.

Nats for both masks together: 2.773 if they are independent, 1.73 with two of the letters on one state, 1.386 at best. A
mixture of softmaxes over one mask is no richer than one softmax, so nothing but what masks know of each other pulls the
copies of a mask apart, and at the start they are alike.

    python benchmarks/agreement.py --seeds 10 --prior 10 3 --copy-embedding 0.06 --init 0.06
"""

import argparse
import json

import torch
from torch import Tensor

from exlm import ExLMConfig, ExLMForMaskedLM
from exlm.model.evaluation import evaluate_batch

LETTERS = 4
BOS, PAD, EOS, UNKNOWN, MASK = 0, 1, 2, 3, 4 + LETTERS


def batch() -> dict[str, Tensor]:
    """The four sequences, each with both letters masked."""
    ids = torch.tensor([[BOS, MASK, MASK, EOS]] * LETTERS)
    labels = torch.full_like(ids, -100)
    labels[:, 1:3] = torch.arange(4, 4 + LETTERS)[:, None]
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}


def train(seed: int, updates: int, learning_rate: float = 2e-3, warmup: int = 60, **settings: object) -> list[float]:
    """Joint nats of both masks after every 100 updates of a small ExLM.

    Args:
        seed: of the initial weights.
        updates: of Adam, on all four sequences at once.
        learning_rate: the peak, reached after `warmup` updates; it falls linearly to 0.
        settings: switches of `ExLMConfig`.
    """
    torch.manual_seed(seed)
    sizes = dict(vocab_size=MASK + 1, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=256)
    dropout = dict(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    config = {
        **sizes,
        **dropout,
        "mask_token_id": MASK,
        "num_states": LETTERS,
        "max_position_embeddings": 64,
        **settings,
    }
    model = ExLMForMaskedLM(ExLMConfig(**config))
    optimizer = torch.optim.AdamW(model.parameters(), learning_rate, betas=(0.9, 0.98), eps=1e-6, fused=True)
    found = []
    for step in range(updates):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate * min((step + 1) / warmup, (updates - step) / (updates - warmup))
        optimizer.zero_grad()
        model(**batch()).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if (step + 1) % 100 == 0:
            found.append(evaluate_batch(model.eval(), batch())["joint_nll"] / LETTERS)
            model.train()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--updates", type=int, default=1000)
    parser.add_argument("--prior", type=float, nargs=2, default=(0.0, 0.0), metavar=("ORDER", "STICKY"))
    parser.add_argument("--copy-embedding", type=float, default=0.0)
    parser.add_argument("--init", type=float, default=0.06)
    parser.add_argument("--rotary-base", type=float, default=100.0)
    parser.add_argument("--expanded-layers", default="all")
    options = parser.parse_args()
    layers = options.expanded_layers if options.expanded_layers == "all" else int(options.expanded_layers)
    settings = {"order_prior": options.prior[0], "sticky_prior": options.prior[1], "expanded_layers": layers}
    settings |= {"copy_embedding": options.copy_embedding, "initializer_range": options.init}
    settings |= {"rotary_base": options.rotary_base}
    finals = []
    for seed in range(options.seeds):
        curve = train(seed, options.updates, **settings)
        finals.append(curve[-1])
        print(json.dumps({"seed": seed, **settings, "joint_nll": [round(value, 3) for value in curve]}), flush=True)
    print(
        f"{sum(value <= 1.8 for value in finals)} of {len(finals)} seeds at 1.80 nats or less, best {min(finals):.3f}"
    )


if __name__ == "__main__":
    main()
