#!/usr/bin/env python3
"""instructor_calls - instructor against a zse-serve that has the model tiny, in the modes whose
answers a server can guarantee: tools and a JSON Schema; plain, with the raw answer, and in parts.

usage: instructor_calls URL
Not part of the check: importing instructor takes longer than its requests.  Last
run with 1.17.0."""
import sys
from typing import Literal

import instructor
from openai import OpenAI
from pydantic import BaseModel, Field

client = OpenAI(base_url=sys.argv[1] + '/v1', api_key='none')
ask = {'model': 'tiny', 'messages': [{'role': 'user', 'content': 'A city?'}], 'temperature': 0, 'max_tokens': 100}


class City(BaseModel):
    name: Literal['Paris', 'Rome']
    population: int = Field(ge=0, le=9)


for mode in instructor.Mode.TOOLS, instructor.Mode.TOOLS_STRICT, instructor.Mode.JSON_SCHEMA:
    c = instructor.from_openai(client, mode=mode)
    assert isinstance(c.chat.completions.create(response_model=City, max_retries=0, **ask), City), mode
    city, raw = c.chat.completions.create_with_completion(response_model=City, max_retries=0, **ask)
    assert raw.usage.completion_tokens > 0
    last = None
    for last in c.chat.completions.create_partial(response_model=City, max_retries=0, **ask):
        pass
    assert last.name in ('Paris', 'Rome'), (mode, last)
print('ok')
