#!/usr/bin/env python3
"""python_tools.py - the Python package that shares its cache with us.

usage: python_tools.py make REPO   (download it into the cache)
       python_tools.py use REPO FOLDER   (offline: check that the cache has FOLDER's files)"""
import os, pathlib, sys

what, repo = sys.argv[1:3]
if what == 'use':
    os.environ['HF_HUB_OFFLINE'] = '1'
os.environ['HF_HUB_DISABLE_XET'] = '1'
import huggingface_hub as hub

if what == 'make':
    print(hub.snapshot_download(repo))
    sys.exit()
folder = sys.argv[3]
snapshot = hub.snapshot_download(repo)
for name in sorted(os.listdir(folder)):
    path = hub.hf_hub_download(repo, name)
    assert path == os.path.join(snapshot, name), path
    assert pathlib.Path(path).read_bytes() == pathlib.Path(folder, name).read_bytes(), name
assert hub.try_to_load_from_cache(repo, 'vocab.json') is hub._CACHED_NO_EXIST
cache = hub.scan_cache_dir()
assert not cache.warnings, cache.warnings
[entry] = cache.repos
[revision] = entry.revisions
assert entry.repo_id == repo and revision.refs == {'main'} and len(revision.files) == len(os.listdir(folder))
print('ok', snapshot)
