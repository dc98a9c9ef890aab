"""What the paper's runs need on 1, 8 and 64 GPUs, by the cost model: python benchmarks/scale.py

Nothing is measured here. The hours follow from the floating-point operations of a step (`cost.step_flops`) and an
assumed utilisation; the memory from the parameters and from what products keep for the backward pass.
"""

from dataclasses import replace

from cost import Shape, parts, step_flops

PEAK, UTILISATION = 790e12, 0.4  # bfloat16 operations a second that products reach on an H100, and the share assumed
GPUS = (1, 8, 64)
TEXT, MOLECULES = 50265, 369  # sizes of the vocabularies
# name: objective, tokens per update, per micro-batch, updates, states per mask, width, layers, heads, inner width,
# vocabulary, tokens of a sequence
RUNS = {
    "molecules, SMILES-BERT": ("mlm", 65536, 32768, 120_000, 1, 768, 9, 12, 2048, MOLECULES, 46),
    "molecules, ExLM (k = 2)": ("exlm", 65536, 32768, 120_000, 2, 768, 9, 12, 2048, MOLECULES, 46),
    "text, base, RoBERTa": ("mlm", 2**20, 65536, 125_000, 1, 768, 12, 12, 3072, TEXT, 512),
    "text, base, ExLM (k = 4)": ("exlm", 2**20, 65536, 125_000, 4, 768, 12, 12, 3072, TEXT, 512),
    "text, large, RoBERTa": ("mlm", 2**20, 32768, 125_000, 1, 1024, 24, 16, 4096, TEXT, 512),
    "text, large, ExLM (k = 4)": ("exlm", 2**20, 32768, 125_000, 4, 1024, 24, 16, 4096, TEXT, 512),
}


def main() -> None:
    """Prints the table of docs/scale.md."""
    print("| run | " + " | ".join(f"{n} GPU{'s' * (n > 1)}" for n in GPUS) + " | memory, GB | one checkpoint, GB |")
    print("| --- " * (len(GPUS) + 3) + "|")
    for name, (
        objective,
        update,
        micro,
        steps,
        states,
        width,
        layers,
        heads,
        inner,
        vocabulary,
        length,
    ) in RUNS.items():
        shape = Shape(update // length, length, 0.15, states, width, layers, heads, inner, vocabulary)
        hours = steps * step_flops(shape, objective) / (PEAK * UTILISATION) / 3600
        parameters = vocabulary * width + layers * (4 * width**2 + 2 * width * inner)
        saved = sum(part.saved for part in parts(replace(shape, batch=micro // length), objective).values())
        memory = (16 * parameters + 2 * saved) / 1e9  # weights, gradients, moments; norms and activations keep as much
        print(f"| {name} | {' | '.join(_time(hours / n) for n in GPUS)} | {memory:.0f} | {12 * parameters / 1e9:.1f} |")


def _time(hours: float) -> str:
    if hours < 1:
        return f"{60 * hours:.0f} min"
    return f"{hours:.0f} h" if hours < 100 else f"{hours / 24:.0f} days"


if __name__ == "__main__":
    main()
