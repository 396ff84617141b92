#!/usr/bin/env python3
"""recall.py - measure recall@5 of the search for passages: recall.py URL [MODE...].

Stores the licence, the man pages and the Markdown of the repository in a collection, asks the
questions of questions.tsv, and prints a table.  A question has a document and words that its right
passage contains, or several such pairs, because more than one passage may answer it."""
import json, pathlib, subprocess, sys, time, urllib.error, urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
URL = sys.argv[1]
MODES = sys.argv[2:] or ['bm25', 'vector', 'hybrid']


def call(path, body=None, method=None):
    r = urllib.request.Request(URL + '/api/rag/' + path, json.dumps(body).encode() if body is not None else None, method=method)
    with urllib.request.urlopen(r) as answer:
        return json.load(answer)


def plain(text):
    return ' '.join(text.split()).lower()


def page_text(path):
    """The text of a man page, as man shows it."""
    page = subprocess.run(['mandoc', '-Tutf8', '-Owidth=100', path], check=True, capture_output=True).stdout
    return subprocess.run(['col', '-bx'], input=page, check=True, capture_output=True).stdout.decode()


def store():
    files = [ROOT / 'LICENSE', ROOT / 'README.md', ROOT / 'HACKING.md', ROOT / 'libcommon/format/FORMAT.md', *sorted(ROOT.glob('man/*.1'))]
    for f in files:
        text = page_text(f) if f.suffix == '.1' else f.read_text()
        try:
            call('documents', {'name': f.name, 'content': text, 'collection': 'recall', 'file_type': 'md' if f.suffix == '.md' else 'txt'})
        except urllib.error.HTTPError as e:
            if e.code != 409:
                raise


def main():
    store()
    stats = call('stats')
    while stats['embedding'] and stats['embedding']['pending'] and MODES != ['bm25']:
        time.sleep(1)
        stats = call('stats')
    questions = [line.split('\t') for line in (ROOT / 'tests/rag/questions.tsv').read_text().splitlines() if line and line[0] != '#']
    print(f'{len(questions)} questions, {stats["chunks"]} chunks')
    worst = 1.0
    for mode in MODES:
        at1 = at5 = doc5 = 0
        start = time.time()
        for question, *rest in questions:
            answers = list(zip(rest[::2], rest[1::2]))
            hits = call('search', {'query': question, 'collections': 'recall', 'top_k': 5, 'mode': mode})['results']
            right = [any(h['document_name'] == name and plain(words) in plain(h['chunk']['content']) for name, words in answers) for h in hits]
            at1 += any(right[:1])
            at5 += any(right)
            doc5 += any(h['document_name'] in dict(answers) for h in hits)
            if not any(right) and '-v' in sys.argv:
                print('  missed:', question)
        n = len(questions)
        print(f'{mode:8} recall@1 {at1 / n:.2f}  recall@5 {at5 / n:.2f}  document@5 {doc5 / n:.2f}  {(time.time() - start) / n * 1000:.1f} ms a query')
        worst = min(worst, at5 / n)
    return worst


if __name__ == '__main__':
    MODES = [m for m in MODES if m != '-v'] or ['bm25']
    main()
