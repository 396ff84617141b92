#!/usr/bin/env python3
"""faq.py - measure the search for passages with public questions: faq.py URL FOLDER [MODE...].

FOLDER holds the unpacked Debian packages perl-doc, python3.11-doc and debian-faq:
    apt-get download perl-doc python3.11-doc debian-faq; for p in *.deb; do dpkg -x $p FOLDER; done
The answers of their FAQs are stored without the questions, in a collection for each.  A passage is
right for a question if it has 200 bytes, or half, of the answer.  Settings of the search are chosen
by these questions, so that those of questions.tsv remain a test of it."""
import gzip, json, pathlib, re, sys, time, urllib.error, urllib.request

URL, ROOT = sys.argv[1], pathlib.Path(sys.argv[2])
MODES = sys.argv[3:] or ['bm25', 'vector', 'hybrid']


def call(path, body=None):
    r = urllib.request.Request(URL + '/api/rag/' + path, json.dumps(body).encode() if body else None)
    with urllib.request.urlopen(r) as answer:
        return json.load(answer)


def plain_pod(text):
    for _ in range(3):                                          # codes within codes
        text = re.sub(r'[A-Z]<<+ (.*?) >>+', r'\1', text, flags=re.S)
        text = re.sub(r'L<(?:[^<>|]*\|)?([^<>]*)>', r'\1', text)
        text = text.replace('E<lt>', '\1').replace('E<gt>', '\2')
        text = re.sub(r'[A-Z]<([^<>]*)>', r'\1', text)
    return text.replace('\1', '<').replace('\2', '>')


def perl():
    """(name, [(question, answer)]) of each file."""
    for f in sorted(ROOT.glob('usr/share/perl/*/pod/perlfaq[1-9].pod')):
        parts = re.split(r'^=head([12]) (.*)$', f.read_text(errors='replace'), flags=re.M)[1:]
        yield f.name, [(plain_pod(q), plain_pod(re.sub(r'^=.*$', '', a, flags=re.M)))
                       for level, q, a in zip(parts[::3], parts[1::3], parts[2::3]) if level == '2']


def python():
    for f in sorted(ROOT.glob('usr/share/doc/python3.11/html/_sources/faq/*.rst.txt')):
        text = re.sub(r':\w+:`~?!?([^`<]*?)(?:\s*<[^>]*>)?`', r'\1', f.read_text()).replace('``', '')
        parts = re.split(r'^([^\n]*\S[^\n]*)\n(?:-{3,}|={3,}|\*{3,}|\^{3,})$', text, flags=re.M)[1:]
        yield f.name, [(q, a) for q, a in zip(parts[::2], parts[1::2]) if q.endswith('?')]


def debian():
    for f in ROOT.glob('usr/share/doc/debian/FAQ/debian-faq.en.txt.gz'):
        pairs, answer = [], None
        for paragraph in re.split(r'\n\s*\n', gzip.open(f, 'rt').read()):
            line = ' '.join(paragraph.split())
            heading = re.match(r'(?:Chapter )?\d+(?:\.\d+)*\. (.*)$', line)
            if heading and len(line) < 200:
                answer = []
                pairs.append((heading[1], answer))
            elif answer is not None:
                answer.append(paragraph)
        yield f.name[:-3], [(q, '\n\n'.join(a)) for q, a in pairs if q.endswith('?')]


def store(collection, name, pairs):
    """Store the answers as one document; returns (question, name, begin, end) of each."""
    text, places = '', []
    for question, answer in pairs:
        answer = answer.strip()
        if len(answer) > 150:
            begin = len(text.encode())
            places.append((question, name, begin, begin + len(answer.encode())))
            text += answer + '\n\n\n'
    try:
        if text:
            call('documents', {'name': name, 'content': text, 'collection': collection, 'file_type': 'txt'})
    except urllib.error.HTTPError as e:
        if e.code != 409:
            raise
    return places


def is_right(hit, name, begin, end):
    first = hit['chunk']['offset']
    last = first + len(hit['chunk']['content'].encode())
    return hit['document_name'] == name and min(last, end) - max(first, begin) >= min(200, (end - begin) / 2)


def main():
    questions = [(faq.__name__, *place) for faq in (perl, python, debian) for name, pairs in faq()
                 for place in store(faq.__name__, name, pairs)]
    stats = call('stats')
    while stats['embedding'] and stats['embedding']['pending'] and MODES != ['bm25']:
        time.sleep(1)
        stats = call('stats')
    print(f'{len(questions)} questions, {stats["chunks"]} chunks')
    for mode in MODES:
        at1 = at5 = reciprocal = 0
        for collection, question, *place in questions:
            hits = call('search', {'query': question, 'collections': collection, 'top_k': 5, 'mode': mode})['results']
            right = [is_right(h, *place) for h in hits]
            at1 += any(right[:1])
            at5 += any(right)
            reciprocal += 1 / (right.index(True) + 1) if any(right) else 0
        n = len(questions)
        print(f'{mode:8} recall@1 {at1 / n:.3f}  recall@5 {at5 / n:.3f}  MRR@5 {reciprocal / n:.3f}', flush=True)


if __name__ == '__main__':
    main()
