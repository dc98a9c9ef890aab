"""Trains AttentiveFP (Xiong et al., 2020), in an environment with torch-geometric and without this
library: python attentivefp_program.py TRAIN VALID ALL PREDICTIONS TASK_TYPE OUTPUTS SEED EPOCHS.

TASK_TYPE is regression, multiclass, or classification by 0 and 1. A table has SMILES and then a
column per label, empty where it is missing. Features, sizes, learning rate and batch are those of
torch-geometric's example. The epoch with the lowest loss on valid is kept."""

import copy
import csv
import sys
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.loader import DataLoader
from torch_geometric.nn.models import AttentiveFP
from torch_geometric.utils import from_smiles
from torch_geometric.utils.smiles import e_map, x_map

WIDTH = 200
LAYERS = 2
STEPS = 2
DROPOUT = 0.2
LEARNING_RATE = 10**-2.5
WEIGHT_DECAY = 1e-5
BATCH = 200
PATIENCE = 20
ATOM_SIZES = [len(values) for values in x_map.values()]  # how many values each feature has
BOND_SIZES = [len(values) for values in e_map.values()]
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def read(path: str) -> list[Any]:
    """The molecules of a table as graphs, with their labels `y` [1, labels]."""
    with open(path, newline="", encoding="utf-8") as file:
        _, *rows = csv.reader(file)
    graphs = [from_smiles(smiles) for smiles, *_ in rows]
    for graph, (_, *labels) in zip(graphs, rows, strict=True):
        graph.y = torch.tensor([[float(label or "nan") for label in labels]])
    return graphs


def one_hot(features: Tensor, sizes: list[int]) -> Tensor:
    """Features [n, features], each a number below its size, as [n, sum of sizes] of 0 and 1."""
    columns = zip(features.T, sizes, strict=True)
    return torch.cat([F.one_hot(column, size) for column, size in columns], 1).float()


def forward(network: nn.Module, graphs: Any) -> Tensor:
    """The outputs for a batch of graphs: [rows, outputs]."""
    graphs = graphs.to(DEVICE)
    atoms = one_hot(graphs.x, ATOM_SIZES)
    bonds = one_hot(graphs.edge_attr, BOND_SIZES)
    return network(atoms, graphs.edge_index, bonds, graphs.batch)


def predict(network: nn.Module, graphs: list[Any]) -> Tensor:
    """The outputs for all graphs, [rows, outputs], on the processor."""
    network.eval()
    with torch.inference_mode():
        return torch.cat([forward(network, batch).cpu() for batch in DataLoader(graphs, BATCH)])


def masked_loss(outputs: Tensor, labels: Tensor, task_type: str) -> Tensor:
    """The mean loss of outputs [rows, outputs] over the labels [rows, labels] that are present."""
    if task_type == "multiclass":
        return F.cross_entropy(outputs, labels[:, 0].long())
    present = ~labels.isnan()
    loss = F.mse_loss if task_type == "regression" else F.binary_cross_entropy_with_logits
    return loss(outputs[present], labels[present])


def train(
    network: nn.Module, graphs: list[Any], valid: list[Any], task_type: str, epochs: int
) -> None:
    """Trains a model, and gives it the weights of the epoch with the lowest loss on valid."""
    valid_labels = torch.cat([graph.y for graph in valid])
    optimizer = torch.optim.Adam(network.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    best_loss = float("inf")
    best_epoch = 0
    weights = network.state_dict()
    for epoch in range(1, epochs + 1):
        network.train()
        for batch in DataLoader(graphs, BATCH, shuffle=True):
            optimizer.zero_grad()
            masked_loss(forward(network, batch), batch.y.to(DEVICE), task_type).backward()
            optimizer.step()
        loss = masked_loss(predict(network, valid), valid_labels, task_type).item()
        print(f"epoch {epoch}: loss on valid {loss:.5f}", flush=True)
        if loss < best_loss:
            best_loss = loss
            best_epoch = epoch
            weights = copy.deepcopy(network.state_dict())
        if epoch - best_epoch >= PATIENCE:
            break
    network.load_state_dict(weights)


def label_scale(labels: np.ndarray) -> tuple[Any, Any]:
    """The mean and the standard deviation [labels] of numbers [rows, labels], 1 where all are
    equal."""
    std = np.nanstd(labels, 0)
    return np.nanmean(labels, 0), np.where(std > 0, std, 1.0)


def main() -> None:
    train_path, valid_path, all_path, target, task_type, outputs, seed, epochs = sys.argv[1:]
    torch.manual_seed(int(seed))
    train_graphs = read(train_path)
    valid_graphs = read(valid_path)
    labels = torch.cat([graph.y for graph in train_graphs]).numpy()
    mean, std = label_scale(labels) if task_type == "regression" else (0, 1)
    for graph in (*train_graphs, *valid_graphs):
        graph.y = (graph.y - torch.as_tensor(mean)) / torch.as_tensor(std)
    network = AttentiveFP(
        in_channels=sum(ATOM_SIZES),
        hidden_channels=WIDTH,
        out_channels=int(outputs),
        edge_dim=sum(BOND_SIZES),
        num_layers=LAYERS,
        num_timesteps=STEPS,
        dropout=DROPOUT,
    ).to(DEVICE)
    train(network, train_graphs, valid_graphs, task_type, int(epochs))
    values = predict(network, read(all_path))
    if task_type == "multiclass":
        values = values.softmax(1)
    elif task_type != "regression":
        values = values.sigmoid()
    np.savetxt(target, values.numpy() * std + mean, delimiter=",")


if __name__ == "__main__":
    main()
