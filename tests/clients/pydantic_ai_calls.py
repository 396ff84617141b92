#!/usr/bin/env python3
"""pydantic_ai_calls - pydantic-ai against a zse-serve that has the model tiny, over chat
completions and responses.

usage: pydantic_ai_calls URL
Not part of the check: importing pydantic-ai takes longer than its requests.  Last
run with 2.68.0 (pydantic-ai-slim)."""
import asyncio
import sys
from typing import Literal

from pydantic import BaseModel, Field
from pydantic_ai import Agent, ModelSettings, NativeOutput, ToolOutput
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

provider = OpenAIProvider(base_url=sys.argv[1] + '/v1', api_key='none')
settings = ModelSettings(temperature=0, max_tokens=100)
question = 'What is 2+2?'


class City(BaseModel):
    name: Literal['Paris', 'Rome']
    population: int = Field(ge=0, le=9)


async def streamed(agent):
    async with agent.run_stream(question) as r:
        return await r.get_output()


for model in OpenAIChatModel('tiny', provider=provider), OpenAIResponsesModel('tiny', provider=provider):
    agent = Agent(model, model_settings=settings)
    r = agent.run_sync(question)
    assert r.output == '2 + 2 = 4' and r.usage.output_tokens > 0, r
    again = agent.run_sync('What is the capital of France?', message_history=r.all_messages())
    assert len(again.all_messages()) == 4
    assert asyncio.run(streamed(agent)) == '2 + 2 = 4'
    for output in ToolOutput(City), NativeOutput(City):
        assert isinstance(Agent(model, output_type=output, model_settings=settings).run_sync('A city?').output, City)
    calls = []
    agent = Agent(model, output_type=ToolOutput(City), model_settings=settings)

    @agent.tool_plain
    def weather(city: Literal['Paris', 'Rome']) -> str:
        """The weather in a city."""
        calls.append(city)
        return f'{city}: sunny'
    assert isinstance(agent.run_sync('The weather in Paris?').output, City)
print('ok')
