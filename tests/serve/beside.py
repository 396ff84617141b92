#!/usr/bin/env python3
"""beside - measure what open pages of the web interface cost a server that decodes.

usage: beside MODEL [ROUNDS [SECONDS]]         (default: 20 rounds of 3 s; no check runs this)
Rounds with and without pages alternate. The pages are clients of this program: a dashboard with its
socket and its requests, and ten chat pages with theirs. It prints the processor time of the server
for each generated token, with over without (median of the pairs, its 95 % interval by bootstrap),
tokens/s the same way, and the processor time for pages alone, by thread.
With a Chromium it also prints the processor time of its processes for the same pages, at rest."""
import http.client, json, os, pathlib, random, statistics, subprocess, sys, threading, time
import page
from wire import WebSocket

DASHBOARD = ['/api/analytics/timeseries', '/api/analytics/requests?limit=30']
CHAT = ['/api/whoami', '/v1/models', '/api/chat/conversations?limit=200&offset=0']


def cpu_ns(pid):
    """Processor time in ns of each thread of a process, by its name."""
    out = {}
    for task in pathlib.Path(f'/proc/{pid}/task').glob('*'):
        try:
            name = (task / 'comm').read_text().strip()
            out[name] = out.get(name, 0) + int((task / 'schedstat').read_text().split()[0])
        except OSError:
            continue                            # it has ended
    return out


class Pages:
    """A dashboard and ten chat pages, as clients."""

    def __init__(self, port):
        self.over = threading.Event()
        self.messages = 0
        self.kept = [http.client.HTTPConnection('127.0.0.1', port) for _ in range(11)]
        for c in self.kept[1:]:
            self.get(c, CHAT)
        self.get(self.kept[0], DASHBOARD)
        self.socket = WebSocket(port, b'/ws/stats')
        self.threads = [threading.Thread(target=f) for f in (self.listen, self.poll)]
        for t in self.threads:
            t.start()

    def get(self, c, paths):
        for path in paths:
            c.request('GET', path)
            r = c.getresponse()
            body = r.read()
            if r.status != 200:
                raise RuntimeError(f'{path}: {r.status} {body[:200]}')

    def listen(self):
        try:
            while True:
                self.messages += self.socket.receive()[0] == 1
        except (EOFError, OSError, ValueError):
            return

    def poll(self):
        while not self.over.wait(15):
            self.get(self.kept[0], DASHBOARD)

    def close(self):
        self.over.set()
        self.socket.s.shutdown(2)
        for t in self.threads:
            t.join()
        for c in self.kept:
            c.close()


def decode(s, seconds):
    """Generate for some seconds; returns tokens/s and the server's processor time in us a token."""
    body = json.dumps({'messages': [{'role': 'user', 'content': 'Count.'}], 'max_tokens': 400, 'ignore_eos': True})
    c, tokens = http.client.HTTPConnection('127.0.0.1', s.port), 0
    before, start = sum(cpu_ns(s.process.pid).values()), time.monotonic()
    while time.monotonic() - start < seconds:
        c.request('POST', '/v1/chat/completions', body)
        tokens += json.loads(c.getresponse().read())['usage']['completion_tokens']
    took = time.monotonic() - start
    return tokens / took, (sum(cpu_ns(s.process.pid).values()) - before) / 1000 / tokens


def show(name, pairs):
    """Print the median of with over without, and a 95 % interval of it."""
    ratios = [a / b for a, b in pairs]
    draws = sorted(statistics.median(random.choices(ratios, k=len(ratios))) for _ in range(4000))
    print(f'{name}: with pages over without {statistics.median(ratios):.4f}, 95 % interval {draws[100]:.4f} to {draws[3899]:.4f} '
          f'({len(ratios)} pairs; medians {statistics.median(a for a, _ in pairs):.1f} and {statistics.median(b for _, b in pairs):.1f})', flush=True)


def at_rest(s, seconds):
    """Print the server's processor time in a second with pages open and nothing generated."""
    for name, make in (('without pages', lambda: None), ('with pages', lambda: Pages(s.port))):
        pages = make()
        time.sleep(1)
        before = cpu_ns(s.process.pid)
        time.sleep(seconds)
        used = {k: (v - before.get(k, 0)) / 1e6 / seconds for k, v in cpu_ns(s.process.pid).items()}
        print(f'at rest {name}: {sum(used.values()):.3f} ms a second', {k: round(v, 3) for k, v in used.items() if v > .0005},
              f'{pages.messages} messages' if pages else '', flush=True)
        if pages:
            pages.close()


def browser(s, seconds):
    """Print the processor time of Chromium with these pages, the dashboard in front."""
    from playwright.sync_api import sync_playwright
    with sync_playwright() as play:
        b = play.chromium.launch(executable_path=page.CHROMIUM, args=['--no-sandbox', '--disable-gpu', '--disable-dev-shm-usage'])
        context = b.new_context()
        for path in ['/chat'] * 10 + ['/dashboard']:
            context.new_page().goto(s.url + path)
        time.sleep(5)

        def total():
            names = [p for p in pathlib.Path('/proc').glob('[0-9]*')]
            mine = [p.name for p in names if str(os.getpid()) in ancestors(p.name) and 'chrom' in comm(p.name)]
            return sum(sum(cpu_ns(p).values()) for p in mine), len(mine)
        before, _ = total()
        time.sleep(seconds)
        after, n = total()
        print(f'Chromium ({n} processes): {(after - before) / 1e6 / seconds:.1f} ms a second')
        b.close()


def comm(pid):
    try:
        return pathlib.Path(f'/proc/{pid}/comm').read_text()
    except OSError:
        return ''


def ancestors(pid):
    out = []
    while pid not in ('0', ''):
        try:
            pid = pathlib.Path(f'/proc/{pid}/stat').read_text().rpartition(')')[2].split()[1]
        except OSError:
            break
        out.append(pid)
    return out


def main(argv):
    if not argv:
        print(__doc__, file=sys.stderr)
        return 2
    s = page.Server(pathlib.Path(argv[0]).resolve())
    rounds, seconds = int((argv[1:] or [20])[0]), float((argv[2:] or [3])[0])
    at_rest(s, 20)
    decode(s, seconds)                          # the first round warms up
    cost, speed = [], []
    for i in range(rounds):
        got = {}
        for on in (True, False) if i % 2 else (False, True):
            pages = Pages(s.port) if on else None
            got[on] = decode(s, seconds)
            if pages:
                pages.close()
        speed.append((got[True][0], got[False][0]))
        cost.append((got[True][1], got[False][1]))
    show('processor time of the server, us a token', cost)
    show('tokens/s', speed)
    if page.CHROMIUM:
        browser(s, 20)
    s.stop()
    return 0


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
