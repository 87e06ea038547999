"""Documents packed into sequences of one length, without padding between them."""

from __future__ import annotations

import itertools
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import Any

from hpcrun.errors import UsageError


class PackedDocuments:
    """A map-style dataset of windows over the documents of another one, laid end to end.

    Window ``i`` has tokens ``i * length`` to ``(i + 1) * length - 1`` of all of them, so that each
    token is in exactly one; only the last window is filled up.

    Parameters
    ----------
    documents
        A map-style dataset of token sequences: lists, arrays or tensors of one dimension.
    length
        Tokens in a window. With targets that are the next token, one more than the context.
    separator
        A token that follows each document; None for none.
    padding
        The token that fills up the last window.
    lengths
        Tokens of each document without the separator. Without it, all documents are read once.
    boundaries
        Have each window be a mapping of ``tokens``, ``positions`` (of each token in its document)
        and ``documents`` (the index of its document; -1 where the window is filled up).
    """

    def __init__(
        self,
        documents: Any,
        length: int,
        *,
        separator: int | None = None,
        padding: int = 0,
        lengths: Iterable[int] | None = None,
        boundaries: bool = False,
    ) -> None:
        if length < 1:
            raise UsageError(f"PackedDocuments(length={length}): a window has at least one token")
        if lengths is None:
            lengths = (len(documents[index]) for index in range(len(documents)))
        added = 0 if separator is None else 1
        self._ends = array("q", itertools.accumulate(each + added for each in lengths))
        if len(self._ends) != len(documents):
            raise UsageError(
                f"PackedDocuments: there are {len(documents):,} documents, and {len(self._ends):,} "
                "lengths"
            )
        self._documents, self._length = documents, length
        self._separator, self._padding, self._boundaries = separator, padding, boundaries

    def __len__(self) -> int:
        """Return the number of windows; 0 if no document has a token."""
        return -(-self._ends[-1] // self._length) if self._ends else 0

    def __getitem__(self, index: int) -> Any:
        """Return a window: an int64 tensor of shape (length,), or a mapping of three of them."""
        import torch

        if not 0 <= index < len(self):
            raise IndexError(f"window {index} of {len(self)}")
        shape = (self._length,)
        tokens = torch.full(shape, self._padding, dtype=torch.int64)
        positions = torch.zeros(shape, dtype=torch.int64)
        documents = torch.full(shape, -1, dtype=torch.int64)
        at = 0
        for document, first, part in self._parts(index):
            here = slice(at, at + len(part))
            tokens[here] = part
            positions[here] = torch.arange(first, first + len(part))
            documents[here] = document
            at += len(part)
        if not self._boundaries:
            return tokens
        return {"tokens": tokens, "positions": positions, "documents": documents}

    def _parts(self, index: int) -> Iterator[tuple[int, int, Any]]:
        """Yield the documents of a window: index, the first token's place in it, and its tokens."""
        import torch

        start = index * self._length
        end = min(start + self._length, self._ends[-1])
        document = bisect_right(self._ends, start)
        while start < end:
            began = self._ends[document - 1] if document else 0
            if (stop := min(end, self._ends[document])) > start:
                tokens = torch.as_tensor(self._documents[document]).to(torch.int64)
                if self._separator is not None:
                    tokens = torch.cat([tokens, tokens.new_tensor([self._separator])])
                if len(tokens) != self._ends[document] - began:
                    raise UsageError(
                        f"PackedDocuments: document {document} has {len(tokens):,} tokens, and had "
                        f"{self._ends[document] - began:,} when they were counted (each with its "
                        "separator)"
                    )
                yield document, start - began, tokens[start - began : stop - began]
                start = stop
            document += 1
