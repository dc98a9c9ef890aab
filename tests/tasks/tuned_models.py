"""What the fine-tuned models of `conftest.py` are made with."""

from exlm.tasks.config import FinetuneConfig

FAST = FinetuneConfig(epochs=2, batch_size=16, learning_rate=3e-3, patience=0, precision="fp32")
# of the encoders
SIZES = dict(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32)
# the labels of table.csv by type of task
COLUMNS = {
    "binary": ["nitrogen"],
    "multiclass": ["element"],
    "multilabel": ["nitrogen", "ring"],
    "regression": ["weight", "carbons"],
}
