"""Functions from tensors to tensors. Nothing here depends on a model, a tokenizer or a data set.

A batch goes through `expansion` (masks become states), `rotary` and `dropout` (in the encoder),
`emission` (targets at states), `transition` (links between states) and `alignment` (the sum over
paths) to `loss`. `emission`, `transition` and `alignment` use `precision` and `fused`; `rotary`
uses `fused`.

Sizes:

    B  sequences                     N  lattice states of a sequence
    S  input tokens                  T  targets of a sequence: BOS, the masked tokens, EOS
    L  positions after expansion     D  width, H heads
    k  states of a mask              V  vocabulary

Names (`expansion.Lattice` has others):

    position          an index in the expanded sequence
    token_position    which input token a position comes from, counted without padding; with
                      `count_copies` the position itself. Attention rotates by it
    state             a position that can emit a target; its index in the lattice is u, v or state
    target            a token that the states must emit; its index is i or target
    edges             [B, N, N] bool, which states are linked
    links             [B, N, N] log-probability of every link: the paper's transition matrix
    state_posterior   [B, T, N] how probably a state emits a target, given all
    link_use          [B, N, N] how often a path is expected to use a link"""
