#!/usr/bin/env python3
"""audit_lines - measure zse-audit on a log of many lines, most of them compressed: its speed, and
that its memory does not grow.

usage: audit_lines [LINES [ZSE-AUDIT]]     (default: 10000000 zse-audit)
It takes some minutes, and 60 MB of disk in TMPDIR for each million compressed lines.  Exit 1 if a
count is wrong, or if all lines take more than 4 MB more than a hundredth of them."""
import gzip, os, shutil, subprocess, sys, tempfile, time

lines, program = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000_000, sys.argv[2] if len(sys.argv) > 2 else 'zse-audit'
PLAIN, FILE = 100_000, 1_000_000        # lines of the current file, at most; of a compressed one
LINE = ('{"timestamp":"2026-11-21T15:08:46.003Z","timestamp_unix":%d.%03d,"request_id":"0a9f1c9e-0000-4000-8000-%012d","method":"POST","path":"%s","status_code":%d,'
        '"latency_ms":%d.500,"api_key_name":"%s","client_ip":"10.0.0.1","user_agent":"python","model_id":"tiny","prompt_tokens":12,"completion_tokens":30,"total_tokens":42,'
        '"error_message":null,"hash":"%064x"}\n')


def block(n):
    now = int(time.time()) - 60
    return ''.join(LINE % (now, i % 1000, i, ('/v1/chat/completions', '/v1/embeddings')[i % 2], (200, 200, 200, 429)[i % 4], i % 900, f'key{i % 50}', i)
            for i in range(n)).encode()


def make(folder, n):
    """Write a log of n lines: compressed files, and the current one."""
    piece, plain, i = block(10_000), min(PLAIN, n // 20_000 * 10_000), 0
    with open(os.path.join(folder, 'requests.jsonl'), 'wb') as f:
        for _ in range(plain // 10_000):
            f.write(piece)
    for left in range(n - plain, 0, -FILE):
        with gzip.open(os.path.join(folder, f'requests_20261121_1508{i // 60:02}_{i % 60 + 2:03}.jsonl.gz'), 'wb', 1) as f:
            for _ in range(min(left, FILE) // 10_000):
                f.write(piece)
        i += 1


def run(folder, *args):
    """Run zse-audit; returns its output, the seconds it took, and its largest memory in kB
    (sampled)."""
    start, peak = time.monotonic(), 0
    with tempfile.TemporaryFile('w+') as out:
        p = subprocess.Popen([program, *args, '--folder', folder], stdout=out, env={})
        while p.poll() is None:
            try:
                with open(f'/proc/{p.pid}/status') as f:
                    peak = max([peak] + [int(line.split()[1]) for line in f if line.startswith('VmHWM')])
            except OSError:
                pass
            time.sleep(0.002)
        seconds = time.monotonic() - start
        if p.returncode:
            sys.exit(f'{" ".join(args)}: exit {p.returncode}')
        out.seek(0)
        return out.read(), seconds, peak


peaks, wrong = {}, 0
program = shutil.which(program) or sys.exit(f'{program}: not found')
for n in (max(lines // 100, 20_000), lines):
    n -= n % 10_000
    with tempfile.TemporaryDirectory() as folder:
        make(folder, n)
        for args, expected in ((('summary', '--json'), f'"total_requests": {n}'), (('query', '-k', 'key7', '-s', '429', '-l', '3', '--json'), '"key7"')):
            text, seconds, peak = run(folder, *args)
            wrong += expected not in text
            print(f'{n} lines, {args[0]}: {n / seconds / 1e6:.2f} million lines a second, {n * len(block(1)) / seconds / 1e6:.0f} MB/s of log, {peak} kB at most' +
                  ('' if expected in text else f': no {expected} in {text[:300]}'), flush=True)
            wrong += peak > peaks.setdefault(args[0], peak) + 4096
sys.exit(1 if wrong else 0)
