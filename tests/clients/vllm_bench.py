#!/usr/bin/env python3
"""vllm_bench - the load generator of `vllm bench serve` against a zse-serve that has the model
tiny.

usage: vllm_bench FOLDER URL
Importing the package vllm needs CUDA's torch, so FOLDER is its wheel, unpacked (pip download
--no-deps vllm; unzip vllm-*.whl 'vllm/benchmarks/*').  The client itself runs: benchmark(), its
request functions, the check that the server is ready, and the comparison of tokenizers by
/tokenize and /detokenize.  Only modules that it imports for other purposes (datasets, local
tokenizers, logging) are replaced here.  It needs aiohttp, regex, tqdm and numpy.  Not part of the
check.  Last run with 0.33.0."""
import asyncio
import importlib.util
import logging
import os
import sys
import types
from dataclasses import dataclass, field

folder, url = sys.argv[1], sys.argv[2].rstrip('/')
sys.path.insert(0, folder)


@dataclass
class SampleRequest:
    prompt: object
    prompt_len: int
    expected_output_len: int
    multi_modal_data: object = None
    lora_request: object = None
    request_id: str = None
    chat_messages: object = None
    request_overrides: object = None
    timestamp: float = None
    arguments: dict = field(default_factory=dict)


def module(name, **members):
    sys.modules[name] = types.ModuleType(name)
    vars(sys.modules[name]).update(members)


module('vllm.benchmarks.datasets', SampleRequest=SampleRequest, add_dataset_parser=None, get_samples=None)
module('vllm.tokenizers', TokenizerLike=object, get_tokenizer=None)
module('vllm.utils')
module('vllm.utils.argparse_utils', FlexibleArgumentParser=object)
module('vllm.utils.gc_utils', freeze_gc_heap=lambda: None)
module('vllm.utils.network_utils', join_host_port=None)
module('vllm.logger', init_logger=logging.getLogger)
spec = importlib.util.spec_from_file_location('vllm.benchmarks.serve', os.path.join(folder, 'vllm/benchmarks/serve.py'))
serve = importlib.util.module_from_spec(spec)
sys.modules[spec.name] = serve
spec.loader.exec_module(serve)


async def run(endpoint, path, **options):
    name = (await serve.get_first_model_from_server(url))[0]
    # more tokens than expected, so that the prompts are cut by /tokenize and /detokenize
    requests = [SampleRequest(f'Request {i}: once upon a time there was', 8, 16, request_id=f'bench-{i}') for i in range(12)]
    if endpoint == 'openai':
        requests = await serve._align_prompts_to_server_tokenizer(url, name, requests)
        assert len({r.prompt for r in requests}) > 1 and all('there was' not in r.prompt for r in requests), requests[0]
    r = await serve.benchmark(
        task_type=serve.TaskType.GENERATION, endpoint_type=endpoint, api_url=url + path, base_url=url, model_id=name,
        model_name=name, tokenizer=None, input_requests=requests, logprobs=None, request_rate=float('inf'), burstiness=1.0,
        disable_tqdm=True, num_warmups=2, profile=False, selected_percentile_metrics=['ttft', 'tpot', 'itl'],
        selected_percentiles=[99.0], ignore_eos=True, goodput_config_dict={}, max_concurrency=4, lora_modules=None,
        extra_headers=None, extra_body={'temperature': 0}, **options)
    assert r['completed'] == 12 and r['failed'] == 0 and r['total_output_tokens'] == 12 * 16, (endpoint, r)

asyncio.run(run('openai', '/v1/completions'))
asyncio.run(run('openai-chat', '/v1/chat/completions'))
asyncio.run(run('openai-responses', '/v1/responses'))
print('ok')
