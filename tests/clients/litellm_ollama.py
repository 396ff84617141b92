#!/usr/bin/env python3
"""litellm_ollama - litellm's two Ollama providers against a zse-serve that has the model tiny.

usage: litellm_ollama URL
Not part of the check: importing litellm takes longer than its requests.  Last run with 1.110.2."""
import sys

import litellm

url = sys.argv[1]
ask = {'messages': [{'role': 'user', 'content': 'What is 2+2?'}], 'api_base': url, 'temperature': 0}
for model in 'ollama_chat/tiny', 'ollama/tiny':
    r = litellm.completion(model=model, **ask)
    assert r.choices[0].message.content == '2 + 2 = 4' and r.usage.completion_tokens == 8, r
    text = ''.join(p.choices[0].delta.content or '' for p in litellm.completion(model=model, stream=True, **ask))
    assert text == '2 + 2 = 4', text
assert len(litellm.embedding(model='ollama/tiny', input=['a', 'b'], api_base=url).data) == 2
print('ok')
