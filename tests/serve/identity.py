#!/usr/bin/env python3
"""identity - compare the answers of zse-serve with every drafter with those without drafts, bit for
bit: text, tokens and log probabilities.

usage: identity.py [PROMPTS]
For a dense model (models/tiny, with the drafters that were trained for it), one with experts and
one with recurrent layers (tests/lib/predictor.py): PROMPTS prompts (default: 200) x greedy and
temperature 1 x with and without a grammar x one and eight requests at a time x one and two threads
x drafters.  The reference is one request at a time on one thread without drafts.  zse-serve and
zse-convert are those of PATH.  Prints a line for each server, with the tokens drafted and accepted.
Exit 1: an answer differed.  Takes some 10 minutes on two cores."""
import concurrent.futures, http.client, json, os, random, re, subprocess, sys, tempfile, threading, time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
N = int(sys.argv[1]) if len(sys.argv) > 1 else 200
TOKENS, REGEX = 24, '[A-Z][a-z ,.0-9]{8,60}'
rng = random.Random(25)


def prompts():
    """Questions that models/tiny knows, texts to repeat, and words in random order."""
    words = 'the capital of France opposite hot what is a days count from one to ten red blue write hello world'.split()
    ask = [lambda: f'What is {rng.randrange(20)} + {rng.randrange(20)}?',
           lambda: 'What is the capital of ' + rng.choice(['France', 'Japan', 'Peru', 'Kenya', 'Cuba', 'Chile']) + '?',
           lambda: rng.choice(['Tell me a joke.', 'Write a haiku.', 'Who are you?', 'Name the days of the week.', 'Count to ten.']),
           lambda: 'Repeat: ' + ' '.join(rng.choices(words, k=rng.randrange(3, 9))) * rng.randrange(1, 4),
           lambda: ' '.join(rng.choices(words, k=rng.randrange(1, 60)))]
    return [ask[i % len(ask)]() for i in range(N)]


class Server:
    def __init__(self, model, *options):
        self.p = subprocess.Popen(['zse-serve', model, '--port', '0', *options], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                  stderr=subprocess.DEVNULL, text=True)
        m = re.search(r':(\d+)$', self.p.stdout.readline().strip())
        if not m:
            sys.exit(f'identity: zse-serve {model} {" ".join(options)} did not start')
        self.port, self.own = int(m[1]), threading.local()

    def answer(self, job):
        i, text, temperature, regex = job
        if self.p.poll() is not None:
            sys.exit(f'identity: {" ".join(self.p.args)}: exit {self.p.returncode}')
        if not hasattr(self.own, 'c'):
            self.own.c = http.client.HTTPConnection('127.0.0.1', self.port, timeout=600)
        body = {'messages': [{'role': 'user', 'content': text}], 'max_tokens': TOKENS, 'temperature': temperature, 'seed': i,
                'logprobs': True, 'top_logprobs': 2, 'ignore_eos': not regex and i % 3 == 0}
        if regex:
            body['guided_regex'] = regex
        self.own.c.request('POST', '/v1/chat/completions', json.dumps(body), {'Content-Type': 'application/json'})
        r = self.own.c.getresponse()
        got = json.loads(r.read())
        if r.status == 503 and 'is being loaded' in got['error']['message']:
            time.sleep(.05)
            return self.answer(job)
        if r.status != 200:
            sys.exit(f'identity: {r.status} {got}')
        spec = got['usage'].get('speculation', {})
        return got['choices'], spec.get('drafted_tokens', 0), spec.get('accepted_tokens', 0)

    def answers(self, jobs, at_once):
        with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
            return list(pool.map(self.answer, jobs))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.p.terminate()
        self.p.wait()


def convert(source, target, *options):
    subprocess.run(['zse-convert', source, '-o', target, *options], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return target


def main():
    models = os.path.join(ROOT, 'models')
    texts = list(enumerate(prompts()))
    jobs = [(i, text, temperature, regex) for regex in (None, REGEX) for temperature in (0, 1) for i, text in texts]
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        made = {}
        for name, form in ('experts', 'deepseek'), ('recurrent', 'qwen'):
            subprocess.run([sys.executable, os.path.join(ROOT, 'tests/lib/predictor.py'), form, '0.1', f'{folder}/{name}'], check=True)
            made[name] = convert(f'{folder}/{name}', f'{folder}/{name}.zse')
        made['dense'] = convert(f'{models}/tiny-mtp', f'{folder}/dense.zse')
        eagle = f'{folder}/eagle'
        subprocess.run([sys.executable, os.path.join(ROOT, 'tests/oracle/eagle.py'), '3', eagle], check=True)
        draft = convert(f'{models}/tiny-draft', f'{folder}/draft.zse')
        of_itself = ['auto', 'ngram:8', 'mtp:3']
        kinds = {'dense': of_itself + [f'draft:4:{draft}', 'self:3:2', f'medusa:2:{models}/tiny-medusa', f'eagle:3:{eagle}'],
                 'experts': of_itself + [f'draft:3:{draft}'], 'recurrent': of_itself + [f'draft:3:{draft}']}
        for name, drafters in kinds.items():
            with Server(made[name], '--spec', 'off', '--threads', '1', '--max-seqs', '1') as s:
                want = [x[0] for x in s.answers(jobs, 1)]
            for spec in drafters:
                for threads in '1', '2':
                    with Server(made[name], '--spec', spec, '--threads', threads, '--max-seqs', '8') as s:
                        for at_once in 1, 8:
                            got = s.answers(jobs, at_once)
                            bad = [job for job, a, b in zip(jobs, want, got) if a != b[0]]
                            wrong += len(bad)
                            print(f'{name}, {spec.replace(folder, "")}, {threads} threads, {at_once} at once: {len(jobs)} answers, '
                                  f'{sum(x[1] for x in got)} tokens drafted, {sum(x[2] for x in got)} accepted, {len(bad)} differ',
                                  *bad[:3], flush=True)
    return 1 if wrong else 0


sys.exit(main())
