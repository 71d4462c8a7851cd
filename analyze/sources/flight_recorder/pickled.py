"""Pickles read without running anything: a stack machine for the opcodes that make plain values, and for no other.

`pickle.load` runs what a file tells it to run, and its memo grows to whatever index a file names: nine bytes take
1.5 GB. Here a global, a call, an extension or a persistent id is refused by name before it could be looked up, the memo
is a dictionary, and no length is believed before the bytes are there. Memory is a small multiple of the file, and a cut
file leaves what came before the cut.

Source: Lib/pickletools.py of Python 3.13 (protocols 0 to 5); torch/csrc/jit/serialization/pickler.cpp, torch 2.2 to
2.14, which writes protocol 2 and twenty of its opcodes.
"""

from __future__ import annotations

import struct
from typing import Any, Final, NoReturn

MOST_LONG: Final = 16
"""Bytes of an integer: torch writes 8. A number of megabytes takes minutes to print."""
MOST_BYTES: Final = 1 << 20
"""Bytes of opcodes for one value. A list takes 64 bytes of memory and one of the file; torch writes kilobytes."""
MOST_STORED: Final = 1 << 22
"""Values in the memo: torch stores each name and each frame once, Python's pickler twenty values for each call."""
LONG_TEXT: Final = 1 << 10
"""Bytes of a text of which one copy serves all dumps of a job: member lists, 117 KB for 16,384 ranks in each dump."""
_MOST_LONG: Final = 1 << 20
_MOST_LONGS: Final = 64
_MOST_DEPTH: Final = 64
_MOST_DIGITS: Final = 40
_SHOWN_BYTES: Final = 64
_MOST_NAME: Final = 200
_KEYS: Final = frozenset({str, int, float, bool, bytes, type(None)})
"""What a key of a dictionary may be: hashing nested tuples of one another takes for ever."""

_CALLS: Final = frozenset(b"Rob\x81\x92")  # REDUCE OBJ BUILD NEWOBJ NEWOBJ_EX
_EXTENSIONS: Final = frozenset(b"\x82\x83\x84")
_PERSISTENT: Final = frozenset(b"PQ")
_FIXED: Final = {
    **dict.fromkeys(b"Khq\x80CU\x8c", 1),
    ord("M"): 2,
    **dict.fromkeys(b"JjrXTB\x8b", 4),
    **dict.fromkeys(b"G\x8d\x8e\x95", 8),
    0x8A: 1,
}
"""Bytes that an opcode asks for behind itself, of those with a fixed number."""

_I4: Final = struct.Struct("<i").unpack_from
_U4: Final = struct.Struct("<I").unpack_from
_U2: Final = struct.Struct("<H").unpack_from
_U8: Final = struct.Struct("<Q").unpack_from
_F8: Final = struct.Struct(">d").unpack_from

_LENGTHS: Final = {
    **dict.fromkeys(b"\x8cUC", struct.Struct("<B").unpack_from),
    **dict.fromkeys(b"TB\x8b", _U4),
    **dict.fromkeys(b"\x8d\x8e", _U8),
}
"""How the opcodes that are followed by so many bytes tell how many."""
_TUPLES: Final = {ord(")"): 0, 0x85: 1, 0x87: 3}
_MADE: Final = frozenset(b")\x85\x87tldas201")

EMPTY_DICT: Final = ord("}")
MARK: Final = ord("(")
APPENDS: Final = ord("e")
SETITEMS: Final = ord("u")


class PickleProblem(Exception):  # noqa: N818 - three kinds of ends of reading, none of which leaves this package
    """Reading cannot go on; the text says why, as a clause that has the file for its subject."""


class Refused(PickleProblem):
    """It would run code, or holds what no plain value is made of."""


class Malformed(PickleProblem):
    """Its opcodes make no sense."""


class Cut(PickleProblem):
    """It ends before its end."""


Texts = dict[tuple[int, bytes], tuple[bytes, str]]
"""Long texts by their length and beginning: as bytes, and decoded."""


class Machine:
    """The stack machine of pickle, for plain values.

    Attributes:
        data: The pickle.
        pos: Where the next opcode is.
        limit: Where the last value of one byte may begin; strings move it on, as they take no more than their bytes.
        stack: Values since the last mark.
        marks: The stacks below it, outermost first.
        memo: What was stored for later use, by number. A dictionary: the number may be anything.
        texts: Long texts of this and other pickles.
        done: The end was reached; the value lies on the stack.
    """

    def __init__(self, data: bytes, memo: dict[int, Any] | None = None, texts: Texts | None = None) -> None:
        self.data = data
        self.pos = 0
        self.limit = MOST_BYTES
        self.stack: list[Any] = []
        self.marks: list[list[Any]] = []
        self.memo: dict[int, Any] = {} if memo is None else memo
        self.texts: Texts = {} if texts is None else texts
        self.done = False

    def value(self) -> Any:
        """Read to the end and give the value.

        Raises:
            PickleProblem: it cannot be read.
        """
        self.run()
        if not self.stack:
            raise Malformed("is a pickle that ends without a value")
        return self.stack[-1]

    def run(self, depth: tuple[int, int] | None = None, *, to_list: bool = False) -> None:
        """Execute opcodes to the end.

        Args:
            depth: Stop also behind a filled dictionary that is the value beyond this many marks and values, or as soon
                as there are fewer marks.
            to_list: Stop also behind the mark that begins the items of a list that is the outermost value, or the value
                of the key `entries`.

        Raises:
            PickleProblem: it cannot be read.
        """
        try:
            while not self.done:
                if self._step(depth, to_list):
                    return
        except (IndexError, struct.error):
            at = self.pos
            needed = 1 + (_FIXED.get(self.data[at], 0) if at < len(self.data) else 0)
            if at + needed > len(self.data):
                raise Cut(f"ends after {len(self.data)} bytes, in the middle") from None
            raise Malformed(f"takes more from the stack at byte {at} than is there") from None
        except KeyError:
            raise Malformed(f"takes from its memo at byte {self.pos} what was never stored there") from None
        except (TypeError, ValueError, OverflowError):
            raise Malformed(f"does at byte {self.pos} what cannot be done with the values there") from None

    def _step(self, depth: tuple[int, int] | None, to_list: bool) -> bool:  # noqa: C901, FBT001, PLR0912, PLR0915
        """Execute the opcodes up to a place to stop (True), or up to one that `_rare` did (False).

        One function with a chain of comparisons, the most frequent first: it runs 66 opcodes for each call of a dump.
        """
        data, stack, memo, pos, limit = self.data, self.stack, self.memo, self.pos, self.limit
        while True:
            self.pos = pos
            op = data[pos]
            if op == 0x68:  # BINGET
                stack.append(memo[data[pos + 1]])
                pos += 2
            elif op == 0x4B:  # BININT1
                stack.append(data[pos + 1])
                pos += 2
            elif op == 0x6A:  # LONG_BINGET
                stack.append(memo[_U4(data, pos + 1)[0]])
                pos += 5
            elif op == 0x4A:  # BININT
                stack.append(_I4(data, pos + 1)[0])
                pos += 5
            elif op == MARK:
                self.marks.append(stack)
                if len(self.marks) > _MOST_DEPTH:
                    raise Malformed(f"is nested more than {_MOST_DEPTH} levels deep at byte {pos}")
                top, stack = stack, []
                self.stack = stack
                pos += 1
                if to_list and _is_entries(self.marks, top):
                    self.pos = pos
                    return True
            elif op == APPENDS:
                items, stack = stack, self._unmark()
                _list(stack).extend(items)
                pos += 1
                if depth is not None and len(self.marks) < depth[0]:
                    self.pos = pos
                    return True
            elif op == 0x5D and pos < limit:  # EMPTY_LIST
                stack.append([])
                pos += 1
            elif op == 0x8A:  # LONG1
                stack.append(self._integer(pos + 2, data[pos + 1]))
                pos += 2 + data[pos + 1]
            elif op == 0x4D:  # BININT2
                stack.append(_U2(data, pos + 1)[0])
                pos += 3
            elif op == 0x86:  # TUPLE2
                stack[-2:] = [(stack[-2], stack[-1])]
                pos += 1
            elif op == 0x4E and pos < limit:  # NONE
                stack.append(None)
                pos += 1
            elif op in (0x88, 0x89) and pos < limit:  # NEWTRUE NEWFALSE
                stack.append(op == 0x88)
                pos += 1
            elif op == EMPTY_DICT and pos < limit:
                stack.append({})
                pos += 1
            elif op == SETITEMS:
                items, stack = stack, self._unmark()
                _fill(_dict(stack), items)
                pos += 1
                if depth is not None and (len(self.marks), len(stack)) == (depth[0], depth[1] + 1):
                    self.pos = pos
                    return True
            elif op == 0x58:  # BINUNICODE
                length = _U4(data, pos + 1)[0]
                stack.append(self._text(pos + 5, length))
                pos += 5 + length
                limit += length
                self.limit = limit
            elif op == 0x71:  # BINPUT
                memo[data[pos + 1]] = stack[-1]
                pos += 2
            elif op == 0x72 and len(memo) < MOST_STORED:  # LONG_BINPUT
                memo[_U4(data, pos + 1)[0]] = stack[-1]
                pos += 5
            elif op == 0x94 and pos < limit and len(memo) < MOST_STORED:  # MEMOIZE, of Python's pickler
                memo[len(memo)] = stack[-1]
                pos += 1
            else:
                self._rare(op, pos)
                return False

    def _rare(self, op: int, pos: int) -> None:
        """The opcodes that torch does not write, but Python's own pickler, and the end."""
        if pos >= self.limit:
            raise Malformed(f"holds one value of more than {MOST_BYTES} bytes at byte {pos}, beside its strings")
        if len(self.memo) >= MOST_STORED:
            raise Malformed(f"stores more than {MOST_STORED} values in its memo")
        after = pos + 1 + _FIXED.get(op, 0)
        if op == 0x2E:  # STOP
            self.done = True
        elif op == 0x94:  # MEMOIZE
            self.memo[len(self.memo)] = self.stack[-1]
        elif op in (0x80, 0x95):  # PROTO FRAME
            self._bytes(pos + 1, _FIXED[op])
        elif op == 0x47:  # BINFLOAT
            self.stack.append(_F8(self.data, pos + 1)[0])
        elif op in _LENGTHS:
            length = _LENGTHS[op](self.data, pos + 1)[0]
            self._sized(op, after, length)
            after += length
            self.limit += length
        elif op in _MADE:
            self._made(op)
        else:
            after = self._lines(op, pos)
        self.pos = after

    def _sized(self, op: int, at: int, length: int) -> None:
        if op == 0x8B:  # LONG4
            self.stack.append(self._integer(at, length))
        elif op in b"CB\x8e":  # SHORT_BINBYTES BINBYTES BINBYTES8
            self.stack.append(self._bytes(at, length))
        else:  # SHORT_BINUNICODE SHORT_BINSTRING BINSTRING BINUNICODE8
            self.stack.append(self._text(at, length))

    def _made(self, op: int) -> None:
        """The opcodes that work on the stack alone."""
        stack = self.stack
        if op in _TUPLES:
            if len(stack) < _TUPLES[op]:
                raise IndexError
            taken = stack[len(stack) - _TUPLES[op] :]
            stack[len(stack) - _TUPLES[op] :] = [tuple(taken)]
        elif op in b"tld":  # TUPLE LIST DICT
            made: Any = tuple(stack) if op == ord("t") else stack
            if op == ord("d"):
                made = {}
                _fill(made, stack)
            self._unmark().append(made)
        elif op == ord("a"):  # APPEND
            item = stack.pop()
            _list(stack).append(item)
        elif op == ord("s"):  # SETITEM
            item, key = stack.pop(), stack.pop()
            _fill(_dict(stack), [key, item])
        elif op == ord("2"):  # DUP
            stack.append(stack[-1])
        elif op == ord("0") and stack:  # POP
            stack.pop()
        else:  # POP of a mark, POP_MARK
            self._unmark()

    def _lines(self, op: int, pos: int) -> int:
        """The opcodes of protocol 0, whose arguments are lines; what is refused; what is unknown."""
        if op not in b"ILFSVpgci":
            self._refuse(op, pos)
        line, after = self._line(pos + 1)
        stack = self.stack
        if op in b"ci":  # GLOBAL INST
            name, _ = self._line(after)
            self._refuse_global(line.decode(errors="replace"), name.decode(errors="replace"), pos)
        elif op == 0x56:  # UNICODE
            stack.append(_whole(line.decode("raw-unicode-escape", errors="replace")))
        elif op == 0x53:  # STRING
            stack.append(line[1:-1].decode(errors="replace"))
        elif op == 0x46:  # FLOAT
            stack.append(float(line[:_MOST_DIGITS]))
        elif op == 0x49 and line in (b"00", b"01"):  # INT, for False and True
            stack.append(line == b"01")
        elif op in b"ILpg" and len(line) <= _MOST_DIGITS:
            number = int(line.removesuffix(b"L"))
            if op == 0x70:  # PUT
                self.memo[number] = stack[-1]
            else:
                stack.append(self.memo[number] if op == 0x67 else number)  # GET
        else:
            raise Malformed(f"has a number of {len(line)} digits at byte {pos}")
        return after

    def _refuse(self, op: int, pos: int) -> NoReturn:
        known = _opcodes().get(chr(op))
        if known is None:
            raise Malformed(f"has 0x{op:02x} at byte {pos}, which is no opcode of a pickle")
        what = f"when loaded ({known} at byte {pos})"
        if op == 0x93:  # STACK_GLOBAL
            self._refuse_global(self.stack[-2], self.stack[-1], pos)
        if op in _CALLS:
            raise Refused(f"would call an object {what}")
        if op in _EXTENSIONS:
            raise Refused(f"would take an object from the registry of extensions {what}")
        if op in _PERSISTENT:
            raise Refused(f"would fetch an object by a persistent id {what}")
        raise Refused(f"would make an object that no dump holds {what}")

    def _refuse_global(self, module: Any, name: Any, pos: int) -> NoReturn:
        called = f"{module}.{name}" if isinstance(module, str) and isinstance(name, str) else "what it computes"
        raise Refused(f"would run `{called[:_MOST_NAME]}` when loaded (a global at byte {pos})")

    def _unmark(self) -> list[Any]:
        self.stack = self.marks.pop()
        return self.stack

    def _bytes(self, at: int, length: int) -> bytes:
        if at + length > len(self.data):
            raise Cut(f"ends after {len(self.data)} bytes, in the middle")
        return self.data[at : at + length]

    def _text(self, at: int, length: int) -> str:
        if length >= LONG_TEXT:
            return self._long_text(at, length)
        return self._bytes(at, length).decode("utf-8", errors="replace")

    def _long_text(self, at: int, length: int) -> str:
        """A text that other dumps have, too: to compare it costs a twentieth of decoding, hashing and keeping it."""
        key = length, self.data[at : at + _SHOWN_BYTES]
        raw, text = self.texts.get(key, (b"", ""))
        if raw and self.data.startswith(raw, at):
            return text
        raw = self._bytes(at, length)
        text = raw.decode("utf-8", errors="replace")
        if key not in self.texts and length <= _MOST_LONG and len(self.texts) < _MOST_LONGS:
            self.texts[key] = raw, text
        return text

    def _integer(self, at: int, length: int) -> int:
        if length > MOST_LONG:
            raise Malformed(f"has a number of {length} bytes at byte {self.pos}")
        return int.from_bytes(self._bytes(at, length), "little", signed=True)

    def _line(self, at: int) -> tuple[bytes, int]:
        end = self.data.find(b"\n", at)
        if end < 0:
            raise Cut(f"ends after {len(self.data)} bytes, in the middle")
        return self.data[at:end], end + 1


def _whole(text: str) -> str:
    """Text whose characters are whole: an escape can name half of one, which no table can hold."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _opcodes() -> dict[str, str]:
    import pickletools

    return {opcode.code: opcode.name for opcode in pickletools.opcodes}


def _is_entries(marks: list[list[Any]], top: list[Any]) -> bool:
    if not top or type(top[-1]) is not list:
        return False
    return len(top) == 1 if len(marks) == 1 else len(marks) == 2 and top[-2:-1] == ["entries"]


def _list(stack: list[Any]) -> list[Any]:
    if type(stack[-1]) is not list:
        raise TypeError
    found: list[Any] = stack[-1]
    return found


def _dict(stack: list[Any]) -> dict[Any, Any]:
    if type(stack[-1]) is not dict:
        raise TypeError
    found: dict[Any, Any] = stack[-1]
    return found


def _fill(mapping: dict[Any, Any], items: list[Any]) -> None:
    keys = items[::2]
    if len(items) % 2 or not _KEYS.issuperset(map(type, keys)):
        raise TypeError
    mapping.update(zip(keys, items[1::2], strict=True))
