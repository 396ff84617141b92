#!/usr/bin/env python3
"""langchain_openai_calls - langchain-openai against a zse-serve that has the model tiny.

usage: langchain_openai_calls URL
Not part of the check: importing langchain takes longer than its requests.  Last run with 1.7.4."""
import enum
import sys
from typing import Literal

from langchain_core.messages import HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from pydantic import BaseModel, Field

url = sys.argv[1] + '/v1'
question = 'What is 2+2?'


@tool
def weather(city: Literal['Paris', 'Rome']) -> str:
    """The weather in a city."""
    return f'{city}: sunny'


class City(BaseModel):
    name: Literal['Paris', 'Rome']
    population: int = Field(ge=0, le=9)


for responses in False, True:
    chat = ChatOpenAI(base_url=url, api_key='none', model='tiny', temperature=0, max_tokens=64, use_responses_api=responses)
    r = chat.invoke([SystemMessage('Be brief.'), HumanMessage(question)])
    assert r.usage_metadata['output_tokens'] > 0, r
    r = chat.invoke(question)
    assert r.text == '2 + 2 = 4', r
    assert ''.join(p.text for p in chat.stream(question)) == '2 + 2 = 4'
    assert [a.text for a in chat.batch([question, question])] == ['2 + 2 = 4'] * 2
    for method in 'json_schema', 'function_calling':
        city = chat.with_structured_output(City, method=method).invoke('A city?')
        assert isinstance(city, City), city
    ask = chat.bind_tools([weather], tool_choice='weather')
    messages = [HumanMessage('The weather in Paris?')]
    a = ask.invoke(messages)
    assert a.tool_calls[0]['name'] == 'weather' and a.tool_calls[0]['args']['city'] in ('Paris', 'Rome'), a
    messages += [a, ToolMessage(weather.invoke(a.tool_calls[0]['args']), tool_call_id=a.tool_calls[0]['id'])]
    assert chat.bind_tools([weather]).invoke(messages).usage_metadata['output_tokens'] > 0
    parts = [c for p in ask.stream(messages[:1]) for c in p.tool_call_chunks]
    assert parts[0]['name'] == 'weather', parts
r = ChatOpenAI(base_url=url, api_key='none', model='tiny', temperature=0, max_tokens=8, logprobs=True,
               top_logprobs=2).invoke(question)
assert len(r.response_metadata['logprobs']['content'][0]['top_logprobs']) == 2, r
# without check_embedding_ctx_length=False it counts tokens by tiktoken, which downloads its tables
v = OpenAIEmbeddings(base_url=url, api_key='none', model='tiny', check_embedding_ctx_length=False)
assert len(v.embed_documents(['a', 'b'])) == 2 and len(v.embed_query('a')) > 0
print('ok')
