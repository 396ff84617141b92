#!/usr/bin/env python3
"""zse.py - language models in Python, by ctypes on libzse: one file, to be copied.

    with Model("model.zse") as m, m.engine() as g:
        prompt = m.render([{"role": "user", "content": "Why is the sky blue?"}])
        for piece in g.stream(prompt, temperature=0):
            print(piece, end="", flush=True)
        print(g.generate(prompt, schema={"type": "object"}).text)
        vectors = g.embed(["a cat", "a dog"])

Failures raise Error.  As a program: zse.py MODEL QUESTION prints an answer.  The library is found
as ctypes.util.find_library() does, or is the path in ZSE_LIBRARY."""
import ctypes
import ctypes.util
import json
import os
import queue
import sys
from ctypes import (CFUNCTYPE, POINTER, Structure, byref, c_char_p, c_double, c_float, c_int, c_int32, c_size_t,
                    c_uint, c_void_p, cast, sizeof, string_at)
from types import SimpleNamespace

JSON_SCHEMA, REGEX, GBNF = range(3)
FINISH = ["none", "stop", "length", "cancelled", "error", "timeout"]
KINDS = {"plain": 0, "query": 1, "document": 2}
FINISH_ERROR = 4


class Error(Exception):
    def __init__(self, e):
        super().__init__(e.message.decode("utf-8", "replace"))
        self.code = e.code


class _Error(Structure):
    _fields_ = [("code", c_int), ("message", ctypes.c_char * 512)]


class _Logprob(Structure):
    _fields_ = [("id", c_int32), ("logprob", c_float)]


class _Event(Structure):
    _fields_ = [("size", c_size_t), ("id", c_int32), ("finish", c_int), ("text", c_void_p), ("text_size", c_size_t), ("logprob", c_float),
                ("top", POINTER(_Logprob)), ("n_top", c_int), ("error", POINTER(_Error))]


_OnEvent = CFUNCTYPE(c_int, c_void_p, POINTER(_Event))


class _Sized(Structure):
    """A struct whose first member is its size."""

    def __init__(self, **values):
        super().__init__(size=sizeof(self), **values)


class _ModelOptions(_Sized):
    _fields_ = [("size", c_size_t), ("verify", c_int), ("no_prefetch", c_int)]


class _RenderOptions(_Sized):
    _fields_ = [("size", c_size_t), ("tools", c_char_p), ("variables", c_char_p), ("chat_template", c_char_p),
                ("no_generation_prompt", c_int), ("reserved", c_int)]


class _EngineOptions(_Sized):
    _fields_ = [("size", c_size_t), ("device", c_char_p), ("n_threads", c_int), ("max_len", c_int),
                ("max_requests", c_int), ("kv", c_char_p), ("max_kv_bytes", c_size_t), ("exact", c_int),
                ("no_prefix_cache", c_int), ("ngram_drafts", c_int), ("reserved", c_int)]


class _RequestOptions(_Sized):
    _fields_ = [("size", c_size_t), ("ids", POINTER(c_int32)), ("n_ids", c_size_t), ("prompt", c_char_p),
                ("add_special", c_int), ("max_tokens", c_int), ("sampling", c_char_p), ("stop", POINTER(c_char_p)),
                ("n_stop", c_int), ("ignore_eos", c_int), ("min_tokens", c_int), ("keep_special", c_int),
                ("grammar", c_void_p), ("logprobs", c_int), ("top_logprobs", c_int), ("priority", c_int),
                ("timeout_s", c_double), ("on_event", _OnEvent), ("user", c_void_p)]


class _Result(_Sized):
    _fields_ = [("size", c_size_t), ("finish", c_int), ("text", c_void_p), ("text_size", c_size_t),
                ("ids", POINTER(c_int32)), ("n_ids", c_size_t), ("n_prompt", c_int), ("n_cached", c_int),
                ("queue_s", c_double), ("prefill_s", c_double), ("decode_s", c_double)]


def _load():
    lib = ctypes.CDLL(os.environ.get("ZSE_LIBRARY") or ctypes.util.find_library("zse") or "libzse.so.0")
    e, p = POINTER(_Error), c_void_p
    for name, result, *arguments in (
            ("version", c_char_p), ("free", None, p), ("model_open", p, c_char_p, POINTER(_ModelOptions), e),
            ("model_close", None, p), ("model_info", c_char_p, p),
            ("tokenize", c_int, p, c_char_p, c_size_t, c_uint, POINTER(POINTER(c_int32)), POINTER(c_size_t), e),
            ("detokenize", c_int, p, POINTER(c_int32), c_size_t, c_uint, POINTER(p), POINTER(c_size_t), e),
            ("render", c_int, p, c_char_p, POINTER(_RenderOptions), POINTER(p), POINTER(c_size_t), e),
            ("grammar_open", p, p, c_int, c_char_p, c_size_t, e), ("grammar_close", None, p),
            ("engine_open", p, p, POINTER(_EngineOptions), e), ("engine_close", None, p),
            ("engine_info", c_int, p, POINTER(p), e), ("submit", p, p, POINTER(_RequestOptions), e),
            ("wait", c_int, p, POINTER(_Result), e), ("cancel", None, p), ("request_free", None, p),
            ("embed", c_int, p, POINTER(c_char_p), c_size_t, c_int, POINTER(POINTER(c_float)), POINTER(c_int), e)):
        f = getattr(lib, "zse_" + name)
        f.restype, f.argtypes = result, arguments
    return lib


_lib = _load()


def _checked(function, *arguments):
    """Call a function whose last argument is the error; raise it after -1 or NULL."""
    e = _Error()
    result = function(*arguments, byref(e))
    if result is None or result == -1:
        raise Error(e)
    return result


def _taken(text, size=None):
    """Copy a text that the library returned, and free it."""
    result = string_at(text, size.value) if size is not None else string_at(text)
    _lib.zse_free(text)
    return result.decode("utf-8")


def _utf8(text):
    return None if text is None else text.encode("utf-8")


def version():
    return _lib.zse_version().decode()


class _Handle:
    """A context manager of a pointer, which _close frees."""
    _p = None

    def close(self):
        if self._p:
            self._close(self._p)
        self._p = None

    def __del__(self):
        self.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class Model(_Handle):
    _close = staticmethod(_lib.zse_model_close)

    def __init__(self, path, verify=False):
        self._p = _checked(_lib.zse_model_open, os.fsencode(path), byref(_ModelOptions(verify=verify)))
        self.info = json.loads(_lib.zse_model_info(self._p))

    def tokenize(self, text, add_special=False, parse_special=False):
        text, ids, n = _utf8(text), POINTER(c_int32)(), c_size_t()
        _checked(_lib.zse_tokenize, self._p, text, len(text), add_special | 2 * parse_special, byref(ids), byref(n))
        result = ids[:n.value]
        _lib.zse_free(ids)
        return result

    def detokenize(self, ids, skip_special=False):
        text, size = c_void_p(), c_size_t()
        _checked(_lib.zse_detokenize, self._p, (c_int32 * len(ids))(*ids), len(ids), 4 * skip_special, byref(text),
                 byref(size))
        return _taken(text, size)

    def render(self, messages, tools=None, variables=None, chat_template=None):
        text, size = c_void_p(), c_size_t()
        o = _RenderOptions(tools=_utf8(json.dumps(tools)) if tools else None, chat_template=_utf8(chat_template),
                           variables=_utf8(json.dumps(variables)) if variables else None)
        _checked(_lib.zse_render, self._p, _utf8(json.dumps(messages)), byref(o), byref(text), byref(size))
        return _taken(text, size)

    def engine(self, **options):
        return Engine(self, **options)


class Request(_Handle):
    """An answer that is being computed."""
    _close = staticmethod(_lib.zse_request_free)

    def __init__(self, engine, prompt, on_event=None, schema=None, regex=None, gbnf=None, stop=(), max_tokens=0,
                 add_special=False, timeout_s=0, ignore_eos=False, **sampling):
        self._engine = engine                           # open as long as the request
        texts = (c_char_p * len(stop))(*map(_utf8, stop))
        # ctypes must not free the callback while the engine may call it
        self._callback = _OnEvent(lambda _, ev: on_event(ev.contents)) if on_event else _OnEvent()
        o = _RequestOptions(max_tokens=max_tokens, add_special=add_special, timeout_s=timeout_s, stop=texts,
                            n_stop=len(stop), ignore_eos=ignore_eos, on_event=self._callback,
                            sampling=_utf8(json.dumps(sampling)))
        if isinstance(prompt, str):
            o.prompt = _utf8(prompt)
        else:
            o.ids, o.n_ids = (c_int32 * len(prompt))(*prompt), len(prompt)
        text, kind = ((json.dumps(schema), JSON_SCHEMA) if schema is not None else
                      (regex, REGEX) if regex is not None else (gbnf, GBNF))
        if text is not None:
            o.grammar = _checked(_lib.zse_grammar_open, engine.model._p, kind, _utf8(text), len(_utf8(text)))
        try:
            self._p = _checked(_lib.zse_submit, engine._p, byref(o))
        finally:
            _lib.zse_grammar_close(o.grammar)           # the request keeps it

    def cancel(self):
        _lib.zse_cancel(self._p)

    def wait(self):
        """The answer: text, ids, finish, n_prompt, n_cached, queue_s, prefill_s, decode_s."""
        r = _Result()
        _checked(_lib.zse_wait, self._p, byref(r))
        return SimpleNamespace(text=string_at(r.text, r.text_size).decode("utf-8"), ids=r.ids[:r.n_ids],
                               finish=FINISH[r.finish], n_prompt=r.n_prompt, n_cached=r.n_cached, queue_s=r.queue_s,
                               prefill_s=r.prefill_s, decode_s=r.decode_s)


class Engine(_Handle):
    _close = staticmethod(_lib.zse_engine_close)

    def __init__(self, model, device=None, kv=None, **options):
        self.model = model
        self._p = _checked(_lib.zse_engine_open, model._p,
                           byref(_EngineOptions(device=_utf8(device), kv=_utf8(kv), **options)))

    def info(self):
        text = c_void_p()
        _checked(_lib.zse_engine_info, self._p, byref(text))
        return json.loads(_taken(text))

    def submit(self, prompt, **options):
        """A Request; options: its arguments and the sampling options of zse-serve(1)."""
        return Request(self, prompt, **options)

    def generate(self, prompt, **options):
        with self.submit(prompt, **options) as r:
            return r.wait()

    def stream(self, prompt, **options):
        """Pieces of text; leaving the loop ends the answer."""
        pieces = queue.SimpleQueue()

        def on_event(ev):
            pieces.put((string_at(ev.text, ev.text_size).decode("utf-8"), ev.finish))
            return 0
        with self.submit(prompt, on_event=on_event, **options) as r:
            finish = 0
            while not finish:
                piece, finish = pieces.get()
                if piece:
                    yield piece
            r.wait()                                    # raises the error of a request that failed

    def embed(self, texts, kind="plain"):
        v, dim, n = POINTER(c_float)(), c_int(), len(texts)
        _checked(_lib.zse_embed, self._p, (c_char_p * n)(*map(_utf8, texts)), n, KINDS[kind], byref(v), byref(dim))
        result = [v[i * dim.value:(i + 1) * dim.value] for i in range(n)]
        _lib.zse_free(cast(v, c_void_p))
        return result


def main():
    if len(sys.argv) != 3:
        sys.exit("usage: zse.py MODEL QUESTION")
    try:
        with Model(sys.argv[1]) as m, m.engine() as g:
            for piece in g.stream(m.render([{"role": "user", "content": sys.argv[2]}]), temperature=0):
                print(piece, end="", flush=True)
            print()
    except Error as e:
        sys.exit(f"zse.py: {e}")


if __name__ == "__main__":
    main()
