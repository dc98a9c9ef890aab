"""Opens files, plain or compressed, and standard input; says what is wrong with those that cannot
be read."""

import codecs
import gzip
import io
import json
import lzma
import re
import shutil
import sys
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, TextIO

import pyarrow

from exlm.errors import InputError, first_line, note

COMPRESSIONS = (".gz", ".xz", ".zst")
STANDARD_INPUT = "-"  # where a file's name may stand; an ending may follow, as in -.csv
# The endings of files that are no plain text, by the bytes that these begin with
ENDINGS_BY_FIRST_BYTES = {
    b"PAR1\x15": ".parquet",
    b"PK\x03\x04": ".xlsx",
    b"\x1f\x8b": ".gz",
    b"\xfd7zXZ": ".xz",
    b"\x28\xb5\x2f\xfd": ".zst",
}
LONGEST_LINE = 2**24  # characters of a line or a cell; one without an end must not fill the memory
LARGEST_FILE = 2**30  # bytes or characters of a file that is read as a whole, when it is unpacked
# What reading a damaged file raises.
READ_ERRORS = (
    OSError,
    EOFError,
    UnicodeError,
    lzma.LZMAError,
    zlib.error,
    pyarrow.ArrowException,
    zipfile.BadZipFile,
)


@contextmanager
def explain_read_errors(name: str | Path) -> Iterator[None]:
    """Turns READ_ERRORS into an InputError that names the file and the reason."""
    try:
        yield
    except FileNotFoundError as error:
        raise InputError(f"{name}: no such file; check its path") from error
    except READ_ERRORS as error:
        reason = f"{first_line(error)}; correct the file, or get a whole copy"
        if isinstance(error, UnicodeDecodeError):
            reason = _explain_encoding(error, name)
        raise InputError(f"{name} cannot be read: {reason}") from error


def _explain_encoding(error: UnicodeDecodeError, name: str | Path) -> str:
    """Where the file `name` is not UTF-8, and what to do."""
    line = error.object[: error.start].rpartition(b"\n")[2]
    before = line[-20:].decode(errors="replace")
    byte = error.object[error.start]
    files = "" if is_standard_input(name) else f" {name} > utf-8-{Path(name).name}"
    return (
        f"it is not UTF-8: it has the byte 0x{byte:02x} after {before!r}; "
        "save it as UTF-8 (Excel: CSV UTF-8), or, with the encoding it was saved in (cp1252 is "
        "Western European, cp1254 Turkish, cp1256 Arabic, cp874 Thai, gb18030 Chinese; a wrong one "
        "gives wrong letters and no error), convert it, if it is from Windows with "
        f"iconv -f cp1252 -t utf-8{files}"
    )


def open_text(name: str | Path, newline: str = "") -> TextIO:
    """A UTF-8 or UTF-16 file, plain or compressed as its name says (COMPRESSIONS). UTF-16 begins
    with its mark, or with two ASCII characters, of which every other byte is 0. Damage raises one
    of READ_ERRORS; InputError for a file that is no text."""
    path = str(path_of(name))
    suffix = Path(name).suffix.lower()
    if suffix == ".zst":
        # Arrow reads every frame and notices a truncated file; the zstandard package does neither.
        stream: Any = pyarrow.input_stream(path, compression="zstd")
    else:
        openers: dict[str, Any] = {".gz": gzip.open, ".xz": lzma.open}
        stream = openers.get(suffix, open)(path, "rb")
    file = io.BufferedReader(stream)
    start = file.peek(5)
    for first_bytes, ending in ENDINGS_BY_FIRST_BYTES.items():
        if start.startswith(first_bytes):
            raise InputError(
                f"{name} begins as a {ending} file does; {advice_on_name(name, ending)}"
            )
    encoding = "utf-8-sig"
    if start[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        encoding = "utf-16"
    elif start[1:4:2] == b"\0\0":
        encoding = "utf-16-le"
    elif start[:4:2] == b"\0\0":
        encoding = "utf-16-be"
    return io.TextIOWrapper(file, encoding, newline=newline)


def text_lines(name: str) -> Iterator[str]:
    """The lines of a text file, with their ends: carriage returns if there is no line feed in its
    first 64 KiB, as old Macs wrote files; else line feeds, with or without a carriage return.
    InputError for a line of more than LONGEST_LINE characters."""
    with open_text(name) as file:
        start = file.read(2**16)
    # After a carriage return at the end of this block, a line feed may follow.
    is_from_old_mac = "\n" not in start and "\r" in start[:-1]
    with open_text(name, newline="\r" if is_from_old_mac else "\n") as file:
        while line := file.readline(LONGEST_LINE + 1):
            check_length(line, name, "a line")
            yield line


def first_lines(name: str) -> list[str]:
    """The first 20 lines of a file, without empty ones and without those that do not end within its
    first 64 KiB; the first line is only cut there."""
    with open_text(name) as file:
        first, *others = re.split(r"\r\n|\r|\n", file.read(2**16))
        if others and file.read(1):
            others.pop()
        return [line for line in [first, *others[:19]] if line]


@cache
def note_once(text: str) -> None:
    """Tells the user what should be known of a file; once, though a command may read it several
    times."""
    note(text)


def read_json(path: str | Path) -> Any:
    """The content of a JSON file, plain or compressed. Raises InputError if it cannot be read."""
    with explain_read_errors(path), open_text(path) as file:
        try:
            # In blocks, because one large read would take as much memory for a small file.
            text = ""
            while block := file.read(2**20):
                text += block
                if len(text) > LARGEST_FILE:
                    raise ValueError(f"it has more than {LARGEST_FILE:,} characters")
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            raise InputError(
                f"{path} cannot be read: {first_line(error)}; correct the JSON"
            ) from error


def check_length(text: str, name: str, what: str) -> None:
    """Raises InputError if the text, which is `what` of the file `name`, has more than LONGEST_LINE
    characters."""
    if len(text) > LONGEST_LINE:
        raise InputError(
            f"{name}: {what} has more than {LONGEST_LINE:,} characters; "
            "divide it, or correct the line ends"
        )


def is_standard_input(name: str | Path) -> bool:
    """Whether this is standard input, perhaps with the ending of its format."""
    return str(name) == STANDARD_INPUT or str(name).startswith(f"{STANDARD_INPUT}.")


def advice_on_name(name: str | Path, ending: str) -> str:
    """How to say that the file `name` has the format of an ending."""
    if not is_standard_input(name):
        return f"give it a name that ends in {ending}"
    if ending in COMPRESSIONS:
        return f"write {STANDARD_INPUT}.csv{ending}, or the like, in place of {name}"
    return f"write {STANDARD_INPUT}{ending} in place of {name}"


def path_of(name: str | Path) -> Path:
    """The path of a file; of standard input, that of a copy of it."""
    return Path(_standard_input().name if is_standard_input(name) else name)


@cache
def _standard_input() -> Any:
    """A temporary file with all of standard input, because some commands read their input more than
    once. It is removed when the process ends."""
    copy = NamedTemporaryFile(prefix="exlm-")  # noqa: SIM115
    shutil.copyfileobj(sys.stdin.buffer, copy)
    copy.flush()
    return copy


def plain_suffix(path: str | Path) -> str:
    """The suffix of a file's format, in lower case and without the suffix of a compression."""
    return _without_compression(path).suffix.lower()


def plain_stem(path: str | Path) -> str:
    """A file's name without the suffixes of its format and its compression."""
    return _without_compression(path).stem


def _without_compression(path: str | Path) -> Path:
    path = Path(path)
    return path.with_suffix("") if path.suffix.lower() in COMPRESSIONS else path
