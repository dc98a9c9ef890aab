"""Functions from tensors to tensors. Nothing here depends on a model, a tokenizer or a data set.

Sizes:

    B  sequences                     N  lattice states of a sequence
    S  input tokens                  T  targets of a sequence: BOS, the masked tokens, EOS
    L  positions after expansion     D  width, H heads
    k  states of a mask              V  vocabulary

Names, of `expansion` unless another module is given:

    position          an index in the expanded sequence
    token_position    which input token a position comes from, counted without padding; with
                      `count_copies` the position itself. Attention rotates by it
    position_ids      [B, L, 2] token position and copy index of every position, for the rotations
    source_token      [B, L] the input token that a position was copied from
    copy_index        [B, L] which copy of its token a position is, from 1; 0 on ordinary tokens
    state             a position that can emit a target; its index in the lattice is u, v or state
    state_index       [B, N] the position of every state
    state_copy        [B, N] which copy of its mask a state is, from 1; 0 for BOS and EOS
    target            a token that the states must emit; its index is i or target
    target_index      [B, T] the input token of every target
    target_of_state   [B, N] the target that every state was made for
    emission          [B, T, N] log-probability of every target at every state (`emission`)
    edges             [B, N, N] bool, which states are linked (`transition`)
    links             [B, N, N] log-probability of every link; an argument of the alignment calls
                      this matrix `transition`, as the paper does
    state_posterior   [B, T, N] how probably it emits the target, given all (`alignment`)
    link_use          [B, N, N] how often a path is expected to use a link (`alignment`)"""
