"""common.py - run programs, read float32 files and print TAP for the oracle tests.

Only the standard library is used."""
import array
import json
import os
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
ORACLES = os.environ.get("ZSE_ORACLES", os.path.join(ROOT, "..", "shared", "oracles"))
BIN = os.environ.get("ZSE_BIN", os.path.join(ROOT, "build"))


class Tap:
    """Counts and prints TAP lines."""
    n = 0

    @classmethod
    def ok(cls, good, name, *details):
        cls.n += 1
        print(f"{'ok' if good else 'not ok'} {cls.n} - {name}")
        for line in details:
            print("#", line)
        sys.stdout.flush()
        return good

    @classmethod
    def skip(cls, name, why):
        cls.n += 1
        print(f"ok {cls.n} - {name} # SKIP {why}")

    @classmethod
    def done(cls):
        print(f"1..{cls.n}")


def run(program, *args, stdin=None):
    """stdout of a program as text; a non-zero exit raises RuntimeError with its stderr."""
    p = subprocess.run([os.path.join(BIN, program), *map(str, args)], input=stdin, capture_output=True, text=True,
                       check=False)
    if p.returncode:
        raise RuntimeError(f"{program} {' '.join(map(str, args))}: exit {p.returncode}: {p.stderr.strip()}")
    return p.stdout


def floats(path):
    a = array.array("f")
    with open(path, "rb") as f:
        a.frombytes(f.read())
    return a


def load(path):
    with open(path, encoding="utf-8") as f:
        return json.load(f)


def need(path):
    """Print one skipped test and end the program if this file of the oracles does not exist."""
    if not os.path.exists(path):
        Tap.skip(os.path.basename(sys.argv[0]), f"{path} is not here")
        Tap.done()
        sys.exit(0)


def first_difference(got, want, gaps, error):
    """Index of the first token that differs from the expected one and cannot be explained by the
    error: there the gap between the two largest logits is above twice the error.  None if there is
    none.  A token that differs at a smaller gap is no error, but the tokens after it cannot be
    compared."""
    for i, (a, b) in enumerate(zip(got, want)):
        if a != b:
            return i if gaps[i] > 2 * error else None
    return None
