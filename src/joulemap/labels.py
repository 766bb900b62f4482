"""A column of repeated strings, stored once each: integer codes into a tuple of words.

A trace of ten million events has a few thousand distinct names; it never becomes ten million strings.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from joulemap.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True, eq=False)
class Labels:
    """``words[codes[i]]`` is the i-th string."""

    codes: NDArray[np.int32]
    words: tuple[str, ...]

    @classmethod
    def of(cls, values: Labels | str | Sequence[str] | Iterable[str], length: int | None = None) -> Labels:
        """Encode strings; one string stands for ``length`` of them; labels stay as they are."""
        if isinstance(values, Labels):
            return values
        if isinstance(values, str):
            return cls(np.zeros(length or 0, np.int32), (values,))
        index: dict[str, int] = {}
        codes = np.fromiter((index.setdefault(value, len(index)) for value in values), np.int32)
        words = tuple(map(str, index))  # NumPy's own strings become plain ones
        if not all(isinstance(word, str) for word in index):
            odd = next(word for word in index if not isinstance(word, str))
            raise InputError(f"{odd!r} is not a name.", "Names, devices and phases are strings.")
        return cls(codes, words)

    @classmethod
    def among(cls, words: tuple[str, ...], values: Labels | str | Iterable[str], length: int) -> Labels:
        """Encode strings that must be from a fixed list, so that a code always means the same."""
        given = cls.of(values, length)
        unknown = [word for word in given.words if word not in words]
        if unknown:
            raise InputError(f"{unknown[0]!r} is none of {', '.join(words)}.")
        remap = np.array([words.index(word) for word in given.words], np.int32)
        return cls(remap[given.codes] if len(given) else given.codes, words)

    @classmethod
    def from_arrow(cls, column: pa.ChunkedArray | pa.Array) -> Labels:
        """From an Arrow string or dictionary column."""
        import pyarrow as pa

        if isinstance(column, pa.ChunkedArray):
            column = column.unify_dictionaries().combine_chunks()
        if isinstance(column, pa.ChunkedArray):  # no chunk at all
            column = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], pa.string())
        if not pa.types.is_dictionary(column.type):
            column = column.dictionary_encode()
        codes = column.indices.to_numpy(zero_copy_only=False).astype(np.int32, copy=False)
        return cls(codes, tuple(column.dictionary.to_pylist()))

    @classmethod
    def joined(cls, columns: Sequence[Labels]) -> Labels:
        """One column after the other."""
        words = dict.fromkeys(word for column in columns for word in column.words)
        if all(column.words == columns[0].words for column in columns):
            return cls(np.concatenate([column.codes for column in columns]), columns[0].words)
        code = {word: number for number, word in enumerate(words)}
        maps = [np.array([code[word] for word in column.words] or [0], np.int32) for column in columns]
        codes = [remap[column.codes] for remap, column in zip(maps, columns, strict=True)]
        return cls(np.concatenate(codes), tuple(words))

    def to_arrow(self) -> pa.DictionaryArray:
        """As an Arrow dictionary column, sharing the codes."""
        import pyarrow as pa

        return pa.DictionaryArray.from_arrays(pa.array(self.codes), pa.array(self.words, pa.string()))

    def __len__(self) -> int:
        return len(self.codes)

    def __iter__(self) -> Iterator[str]:
        return (self.words[code] for code in self.codes.tolist())

    def __getitem__(self, rows: NDArray[np.bool_] | NDArray[np.integer] | slice) -> Labels:
        return Labels(self.codes[rows], self.words)

    def code(self, word: str) -> int:
        """The code of a word, or -1 when it does not occur in the vocabulary."""
        return self.words.index(word) if word in self.words else -1

    def isin(self, words: Iterable[str]) -> NDArray[np.bool_]:
        """Which of the strings are among these words."""
        wanted = set(words)
        return np.array([word in wanted for word in self.words] or [False])[self.codes]

    def used(self) -> Labels:
        """The same column with only the words that occur in it."""
        present = np.zeros(len(self.words), bool)
        present[self.codes] = True
        codes = (np.cumsum(present) - 1).astype(np.int32)[self.codes]
        return Labels(codes, tuple(word for word, here in zip(self.words, present, strict=True) if here))

    def mapped(self, words: Sequence[str]) -> Labels:
        """The same column with every word replaced (``words[i]`` for ``self.words[i]``), merged anew."""
        distinct = {word: code for code, word in enumerate(dict.fromkeys(words))}
        remap = np.array([distinct[word] for word in words], np.int32)
        return Labels(remap[self.codes] if len(self) else self.codes, tuple(distinct))
