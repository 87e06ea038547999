"""Documents packed into sequences of one length, without padding between them."""

from __future__ import annotations

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
        A map-style dataset of token sequences: lists, arrays or tensors of one dimension, or
        `hpcrun.TokenFiles`. Of one that is longer than a window only the part in it is read.
    length
        Tokens in a window. With targets that are the next token, one more than the context.
    overlap
        Tokens that a window has in common with the one before. With 1 each token is a target once,
        but for the first of all.
    separator
        A token that follows each document; None for none.
    padding
        The token that fills up the last window.
    lengths
        Tokens of each document without the separator. Without it those that ``documents.lengths``
        has, or all documents are read once.
    boundaries
        Have each window be a mapping of ``tokens``, ``positions`` (of each token in its document)
        and ``documents`` (the index of its document; -1 where the window is filled up).
    first_token, last_token
        The token with which a document begins or ends within those of ``documents``, as in files
        that have no index. Each window then counts its documents from 0, and positions from where
        the document or the window begins.
    vocabulary
        The number of tokens of the model: a token that is not below it is refused, which on a GPU
        would end the rank without saying where.
    """

    def __init__(
        self,
        documents: Any,
        length: int,
        *,
        overlap: int = 0,
        separator: int | None = None,
        padding: int = 0,
        lengths: Iterable[int] | None = None,
        boundaries: bool = False,
        first_token: int | None = None,
        last_token: int | None = None,
        vocabulary: int | None = None,
    ) -> None:
        import numpy

        if length < 1:
            raise UsageError(f"PackedDocuments(length={length}): a window has at least one token")
        if not 0 <= overlap < length:
            raise UsageError(
                f"PackedDocuments(length={length}, overlap={overlap}): windows have fewer tokens "
                "in common than each has"
            )
        if not boundaries and (first_token, last_token) != (None, None):
            raise UsageError(
                "PackedDocuments: first_token and last_token say where documents end, which is "
                "left out without boundaries=True"
            )
        if lengths is None:
            lengths = getattr(documents, "lengths", None)
        if lengths is None:
            lengths = (len(documents[index]) for index in range(len(documents)))
        if not isinstance(lengths, numpy.ndarray):
            lengths = numpy.fromiter(lengths, numpy.int64)
        self._ends = numpy.cumsum(lengths + (0 if separator is None else 1))
        if len(self._ends) != len(documents):
            raise UsageError(
                f"PackedDocuments: there are {len(documents):,} documents, and {len(self._ends):,} "
                "lengths"
            )
        self._documents, self._length, self._step = documents, length, length - overlap
        self._separator, self._padding, self._boundaries = separator, padding, boundaries
        self._first_token, self._last_token = first_token, last_token
        self._vocabulary = vocabulary

    def __len__(self) -> int:
        """Return the number of windows; 0 if no document has a token."""
        tokens = int(self._ends[-1]) if len(self._ends) else 0
        return max(0, -(-(tokens - self._length + self._step) // self._step))

    def __getitem__(self, index: int) -> Any:
        """Return a window: an int64 tensor of shape (length,), or a mapping of three of them.

        Raises UsageError for a token beyond the vocabulary.
        """
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
            if (
                self._vocabulary is not None
                and not 0 <= part.min() <= part.max() < self._vocabulary
            ):
                wrong = part.max() if part.max() >= self._vocabulary else part.min()
                raise UsageError(
                    f"PackedDocuments: document {document} has token {int(wrong):,} in window "
                    f"{index:,}, and the model's vocabulary has {self._vocabulary:,}: it was "
                    "written with another tokenizer, or is of another dtype"
                )
        if not self._boundaries:
            return tokens
        if (self._first_token, self._last_token) != (None, None):
            positions, documents = self._found_in(tokens, documents)
        return {"tokens": tokens, "positions": positions, "documents": documents}

    def _parts(self, index: int) -> Iterator[tuple[int, int, Any]]:
        """Yield the documents of a window: index, the first token's place in it, and its tokens."""
        import torch

        start = index * self._step
        end = min(start + self._length, int(self._ends[-1]))
        document = int(self._ends.searchsorted(start, "right"))
        while start < end:
            began = int(self._ends[document - 1]) if document else 0
            if (stop := min(end, int(self._ends[document]))) > start:
                tokens = self._documents[document]
                added = 0 if self._separator is None else 1
                counted = int(self._ends[document]) - began - added
                if len(tokens) != counted:
                    raise UsageError(
                        f"PackedDocuments: document {document} has {len(tokens):,} tokens, and had "
                        f"{counted:,} when they were counted"
                    )
                part = tokens[start - began : stop - began]
                # Some types of arrays have no tensor.
                part = part.astype("int64") if hasattr(part, "astype") else part
                part = torch.as_tensor(part, dtype=torch.int64)
                if stop - began > counted:
                    part = torch.cat([part, part.new_tensor([self._separator])])
                yield document, start - began, part
                start = stop
            document += 1

    def _found_in(self, tokens: Any, documents: Any) -> tuple[Any, Any]:
        """Return positions and documents of a window by the tokens that begin and end them."""
        import torch

        is_first = torch.ones_like(tokens, dtype=torch.bool)
        is_first[1:] = documents[1:] != documents[:-1]
        if self._first_token is not None:
            is_first |= tokens == self._first_token
        if self._last_token is not None:
            is_first[1:] |= tokens[:-1] == self._last_token
        number = is_first.cumsum(0) - 1
        positions = torch.arange(len(tokens)) - is_first.nonzero().flatten()[number]
        is_filled = documents < 0
        return positions.masked_fill(is_filled, 0), number.masked_fill(is_filled, -1)
