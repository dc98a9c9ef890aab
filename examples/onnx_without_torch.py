"""Predictions or vectors from an exported model, without PyTorch.

    python examples/onnx_without_torch.py DIRECTORY TEXT...

DIRECTORY is written by `exlm export MODEL --output DIRECTORY`; this needs only `pip install
onnxruntime tokenizers`.
"""

import sys

import numpy as np
from onnxruntime import InferenceSession
from tokenizers import Tokenizer

directory, *texts = sys.argv[1:]
tokenizer = Tokenizer.from_file(f"{directory}/tokenizer.json")  # it cuts long texts by itself
tokenizer.enable_padding()  # the padding's id does not matter: attention_mask leaves it out
batch = tokenizer.encode_batch(texts)
columns = {
    "input_ids": [row.ids for row in batch],
    "attention_mask": [row.attention_mask for row in batch],
}
inputs = {name: np.array(column) for name, column in columns.items()}
session = InferenceSession(f"{directory}/model.onnx")
for output, values in zip(session.get_outputs(), session.run(None, inputs), strict=True):
    print(output.name, values.shape, values.tolist())
