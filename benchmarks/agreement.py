"""Toys that only states that differ can learn: all tokens are masked, without context, and must fit
together.

agreement   two masks that must hold the same one of four letters
chain       four masks (x, x+1, x+2, x+3) of ten letters, modulo 10
pairs       four masks (x, x+1, y, y+1), two pairs that know nothing of each other

A mixture of softmaxes over one mask is no richer than one softmax, so nothing but what masks know
of each other pulls the copies of a mask apart, and at the start they are alike. With one state in
each mask, what the masks on both sides of a link tell each other is at most ln k nats: the best
that k states can do is to share the letters evenly.

Agreement, nats for both masks together: 2.773 if they are independent, 1.73 with two of the letters
on one state, 1.386 at best. Chain and pairs are those of VMD (arXiv 2510.23606), which has a latent
variable for the whole sequence. Published shares of valid sequences, sampled in one pass: masked
diffusion 0.1% (chain) and 1.1% (pairs), VMD 87.3% and 80.0%.

    python benchmarks/agreement.py --seeds 10 --prior 10 3 --copy-embedding 0.06
    python benchmarks/agreement.py --toy chain --states 1 2 4 10 --prior 10 3 --copy-embedding 0.06
"""

import argparse
import json
import math
from typing import Any

import torch
from torch import Tensor

from exlm import ExLMConfig, ExLMForMaskedLM
from exlm.filling import graph_search
from exlm.model.evaluation import evaluate_batch

BOS, PAD, EOS, UNKNOWN, FIRST = range(5)  # FIRST is the first letter; [MASK] comes after the last
PUBLISHED = {
    "chain": {"masked diffusion": 0.001, "VMD": 0.873},
    "pairs": {"masked diffusion": 0.011, "VMD": 0.800},
}


def sequences(toy: str) -> Tensor:
    """All sequences of a toy, which are equally frequent: [sequences, masks] numbers of letters."""
    if toy == "agreement":
        return torch.arange(4)[:, None].repeat(1, 2)
    letters = torch.arange(10)
    if toy == "chain":
        return (letters[:, None] + torch.arange(4)) % 10
    first, second = torch.cartesian_prod(letters, letters).unbind(1)
    return torch.stack([first, first + 1, second, second + 1], dim=1) % 10


def batch(letters: Tensor) -> dict[str, Tensor]:
    """The sequences [sequences, masks] with every letter masked."""
    ends = letters.new_zeros(len(letters), 1)
    mask_id = FIRST + int(letters.max()) + 1
    ids = torch.cat([ends + BOS, torch.full_like(letters, mask_id), ends + EOS], dim=1)
    labels = torch.cat([ends - 100, letters + FIRST, ends - 100], dim=1)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}


def best_of(toy: str, states: int) -> tuple[float, float]:
    """Nats of a sequence and the share of valid samples of the best model with one state in each
    mask: its states share the letters evenly, and a state tells which of its n letters it stands
    for with probability 1/n."""
    letters = int(sequences(toy).max()) + 1
    states = min(states, letters)
    # n of every state
    shares = [letters // states + (state < letters % states) for state in range(states)]
    independent, links = (2, 1) if toy == "pairs" else (1, sequences(toy).shape[1] - 1)
    nats_of_link = sum(n * math.log(n) for n in shares) / letters
    nats = independent * (math.log(letters) + links * nats_of_link)
    valid = (sum(n * n**-links for n in shares) / letters) ** independent
    return nats, valid


def train(
    letters: Tensor,
    seed: int,
    updates: int,
    learning_rate: float = 2e-3,
    warmup: int = 60,
    **settings: Any,
) -> tuple[ExLMForMaskedLM, list[float]]:
    """A small ExLM, and the joint nats of all masks of a sequence after every 100 updates.

    Args:
        letters: [sequences, masks] what it learns.
        seed: of the initial weights.
        updates: of Adam, on all sequences at once.
        learning_rate: the peak, reached after `warmup` updates; it falls linearly to 0.
        settings: switches of `ExLMConfig`.
    """
    torch.manual_seed(seed)
    mask_id = FIRST + int(letters.max()) + 1
    sizes = dict(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=256)
    dropout = dict(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    places = dict(vocab_size=mask_id + 1, mask_token_id=mask_id, max_position_embeddings=64)
    model = ExLMForMaskedLM(ExLMConfig(**{**sizes, **dropout, **places, **settings}))
    optimizer = torch.optim.AdamW(
        model.parameters(), learning_rate, betas=(0.9, 0.98), eps=1e-6, fused=True
    )
    curve = []
    for step in range(updates):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate * min(
                (step + 1) / warmup, (updates - step) / (updates - warmup)
            )
        optimizer.zero_grad()
        model(**batch(letters)).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if (step + 1) % 100 == 0:
            curve.append(evaluate_batch(model.eval(), batch(letters))["joint_nll"] / len(letters))
            model.train()
    return model.eval(), curve


@torch.no_grad()
def valid_share(model: ExLMForMaskedLM, letters: Tensor, samples: int = 10_000) -> float:
    """The share of samples, drawn in one pass, that are among the sequences."""
    example = {name: tensor[:1] for name, tensor in batch(letters).items()}
    output = model.lattice_output(model.exlm.expand(**example))
    probs = model.head(output.states)[0].double().softmax(-1)
    graph = graph_search.Graph(probs, output.links[0].double(), output.lattice.target_of_state[0])
    drawn = (
        graph_search.sample(
            graph, graph.num_masks, samples, torch.Generator().manual_seed(0)
        ).token_ids
        - FIRST
    )
    return float((drawn[:, None] == letters).all(2).any(1).double().mean())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--toy", choices=("agreement", "chain", "pairs"), default="agreement")
    parser.add_argument("--states", type=int, nargs="+", help="k; as many as letters where absent")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--updates", type=int, default=1000)
    parser.add_argument(
        "--prior", type=float, nargs=2, default=(0.0, 0.0), metavar=("ORDER", "STICKY")
    )
    parser.add_argument("--copy-embedding", type=float, default=0.0)
    parser.add_argument("--init", type=float, default=0.06)
    parser.add_argument("--rotary-base", type=float, default=100.0)
    parser.add_argument("--expanded-layers", default="all")
    options = parser.parse_args()
    layers = (
        options.expanded_layers
        if options.expanded_layers == "all"
        else int(options.expanded_layers)
    )
    settings = {
        "order_prior": options.prior[0],
        "sticky_prior": options.prior[1],
        "expanded_layers": layers,
    }
    settings |= {"copy_embedding": options.copy_embedding, "initializer_range": options.init}
    settings |= {"rotary_base": options.rotary_base}
    letters = sequences(options.toy)
    for states in options.states or [int(letters.max()) + 1]:
        nats, valid = best_of(options.toy, states)
        best = {"best_joint_nll": round(nats, 3), "best_valid": round(valid, 4)}
        finals = []
        for seed in range(options.seeds):
            model, curve = train(letters, seed, options.updates, num_states=states, **settings)
            finals.append(curve[-1])
            scores = {
                "joint_nll": [round(value, 3) for value in curve],
                "valid": valid_share(model, letters),
            }
            print(
                json.dumps(
                    {
                        "toy": options.toy,
                        "seed": seed,
                        "num_states": states,
                        **settings,
                        **scores,
                        **best,
                    }
                ),
                flush=True,
            )
        if options.toy == "agreement":
            learned = sum(value <= 1.8 for value in finals)
            print(f"{learned} of {len(finals)} seeds at 1.80 nats or less, best {min(finals):.3f}")
    if options.toy in PUBLISHED:
        print(
            "published, valid:",
            ", ".join(f"{name} {share:.1%}" for name, share in PUBLISHED[options.toy].items()),
        )


if __name__ == "__main__":
    main()
