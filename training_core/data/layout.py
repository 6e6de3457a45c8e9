"""Several sequences in one row: branches that share a prompt, and documents side by side.

A prompt that several responses share is computed once. This is exact: the hidden states of a prompt
do not depend on later tokens, and a response attends only to its prompt and to itself:

    columns     p p p c c r r r
    positions   0 1 2 3 4 3 4 5
    branches    0 0 0 1 1 2 2 2
    predictors  . 0 1 2 3 2 5 6
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from training_core.types import Batch, Example, Layout


def shared_length(group: Sequence[Example]) -> int:
    """Length in tokens of the untrained beginning that all sequences of `group` share."""
    first_trained = min(_first_trained(example) for example in group)
    shortest = min(len(example) for example in group) - 1  # the last token is not shared
    common = 0
    for ids in zip(*(e.input_ids[: min(first_trained, shortest)] for e in group), strict=True):
        if len(set(ids)) > 1:
            break
        common += 1
    return common


def _first_trained(example: Example) -> int:
    return example.loss_mask.index(1) if 1 in example.loss_mask else len(example)


def row_length(group: Sequence[Example]) -> int:
    """Length in tokens of the row that `collate_shared` makes from a group."""
    shared = shared_length(group)
    return shared + sum(len(example) - shared for example in group)


def collate_shared(
    groups: Sequence[Sequence[Example]], pad_id: int, device: torch.device | str = "cpu"
) -> Batch:
    """Put each group into one row that contains the shared beginning once.

    Args:
        groups: groups of the same size G; group i becomes row i.
        pad_id: padding id, used on the right.
        device: device of the tensors.

    Returns:
        A batch whose sequences are numbered member by member: all first members (one per group),
        then all second members, and so on.
    """
    rows = [_row(group) for group in groups]
    width = max(len(row["ids"]) for row in rows)
    size = len(groups)

    def pad(name: str, fill: int) -> Tensor:
        table = [row[name] + [fill] * (width - len(row[name])) for row in rows]
        return torch.tensor(table, dtype=torch.int64, device=device)

    documents = pad("documents", -1)
    branches = pad("branches", -1)
    number = torch.arange(size, device=device)[:, None]
    sequences = torch.where(branches > 0, (branches - 1) * size + number, -1)
    ends = [[i, row["ends"][k]] for k in range(len(groups[0])) for i, row in enumerate(rows)]
    layout = Layout(
        documents=documents,
        branches=branches,
        positions=pad("positions", 0),
        predictors=pad("predictors", 0),
        sequences=sequences,
        ends=torch.tensor(ends, dtype=torch.int64, device=device),
    )
    return Batch(pad("ids", pad_id), documents >= 0, pad("loss", 0).bool(), layout)


def _row(group: Sequence[Example]) -> dict[str, list[int]]:
    shared = shared_length(group)
    ids = list(group[0].input_ids[:shared])
    positions, branches = list(range(shared)), [0] * shared
    predictors, loss = [max(0, p - 1) for p in positions], [0] * shared
    ends = []
    for branch, example in enumerate(group, 1):
        start, own = len(ids), len(example) - shared
        ids += example.input_ids[shared:]
        positions += range(shared, len(example))
        branches += [branch] * own
        predictors += [max(0, shared - 1), *range(start, start + own - 1)]
        # Without a shared beginning, no token predicts the first token of a branch.
        loss += [example.loss_mask[shared] if shared else 0, *example.loss_mask[shared + 1 :]]
        ends.append(len(ids) - 1)
    return {
        "ids": ids,
        "positions": positions,
        "branches": branches,
        "predictors": predictors,
        "loss": loss,
        "documents": [0] * len(ids),
        "ends": ends,
    }


def collate_packed(
    packs: Sequence[Sequence[Example]], pad_id: int, device: torch.device | str = "cpu"
) -> Batch:
    """Put the sequences of each pack next to each other into one row, without mutual attention.

    Returns:
        A batch whose sequences are numbered in the order of `packs`.
    """
    width = max(sum(len(e) for e in pack) for pack in packs)
    shape = (len(packs), width)
    ids = torch.full(shape, pad_id, dtype=torch.int64)
    documents, sequences = torch.full(shape, -1), torch.full(shape, -1)
    positions, loss = torch.zeros(shape, dtype=torch.int64), torch.zeros(shape, dtype=torch.bool)
    ends: list[list[int]] = []
    for row, pack in enumerate(packs):
        start = 0
        for document, example in enumerate(pack):
            at = slice(start, start + len(example))
            ids[row, at] = torch.tensor(example.input_ids)
            loss[row, at] = torch.tensor(example.loss_mask, dtype=torch.bool)
            loss[row, start] = False
            positions[row, at] = torch.arange(len(example))
            documents[row, at], sequences[row, at] = document, len(ends)
            ends.append([row, at.stop - 1])
            start = at.stop
    layout = Layout(
        documents=documents.to(device),
        branches=torch.zeros_like(documents).to(device),
        positions=positions.to(device),
        predictors=(torch.arange(width).expand(shape) - 1).clamp(min=0).to(device),
        sequences=sequences.to(device),
        ends=torch.tensor(ends, dtype=torch.int64, device=device),
    )
    return Batch(ids.to(device), layout.documents >= 0, loss.to(device), layout)


def visible(layout: Layout) -> Tensor:
    """Return which tokens each token attends to: [B, 1, T, T] bool, query dimension first.

    Every query attends to itself, even padding, so that no row of the attention is empty.
    """
    width = layout.documents.shape[1]
    causal = torch.ones(width, width, dtype=torch.bool, device=layout.documents.device).tril()
    document, branch = layout.documents, layout.branches
    same_document = document[:, :, None] == document[:, None, :]
    in_reach = (branch[:, None, :] == 0) | (branch[:, :, None] == branch[:, None, :])
    return (causal & same_document & in_reach)[:, None]
